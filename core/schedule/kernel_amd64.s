//go:build !noasm

#include "textflag.h"

DATA infinity<>+0(SB)/8, $0x7ff0000000000000
GLOBL infinity<>(SB), RODATA|NOPTR, $8

// func lowestAVX2(costs *float64, groups int) (least float64, first, ties int)
//
// The minimum of a NaN and a number is VMINPD's second operand, Go's first: what was found before.
TEXT ·lowestAVX2(SB), NOSPLIT, $0-40
	MOVQ         costs+0(FP), SI
	MOVQ         groups+8(FP), CX
	VBROADCASTSD infinity<>(SB), Y0
	VMOVAPD      Y0, Y1

next:
	VMOVUPD (SI), Y2
	VMOVUPD 32(SI), Y3
	VMINPD  Y0, Y2, Y0
	VMINPD  Y1, Y3, Y1
	ADDQ    $64, SI
	DECQ    CX
	JNZ     next

	VMINPD       Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VMINPD       X1, X0, X0
	VPERMILPD    $1, X0, X1
	VMINPD       X1, X0, X0
	VMOVSD       X0, least+16(FP)
	VBROADCASTSD X0, Y0

	MOVQ costs+0(FP), SI
	MOVQ groups+8(FP), CX
	XORL DX, DX // the position
	XORL R8, R8 // ties
	XORL R9, R9 // the first of them

where:
	VCMPPD    $0, (SI), Y0, Y2
	VCMPPD    $0, 32(SI), Y0, Y3
	VMOVMSKPD Y2, AX
	VMOVMSKPD Y3, BX
	SHLL      $4, BX
	ORL       BX, AX
	JZ        none
	TESTQ     R8, R8
	JNZ       count
	BSFL      AX, R9
	ADDQ      DX, R9

count:
	POPCNTL AX, AX
	ADDQ    AX, R8

none:
	ADDQ $8, DX
	ADDQ $64, SI
	DECQ CX
	JNZ  where
	MOVQ R9, first+24(FP)
	MOVQ R8, ties+32(FP)
	VZEROUPPER
	RET

DATA neighbours<>+0(SB)/8, $0x0000000100000000
DATA neighbours<>+8(SB)/8, $0x0000000300000002
DATA neighbours<>+16(SB)/8, $0x0000000500000004
DATA neighbours<>+24(SB)/8, $0x0000000700000006
GLOBL neighbours<>(SB), RODATA|NOPTR, $32

DATA two52<>+0(SB)/8, $0x4330000000000000
GLOBL two52<>(SB), RODATA|NOPTR, $8

// FLOAT makes doubles of integers below 2^52, and collects their bits in Y7.
#define FLOAT(x) \
	VPOR   x, Y7, Y7; \
	VPOR   Y15, x, x; \
	VSUBPD Y15, x, x

// FOUR writes the costs of four neighbours: plain.cost, operation by operation. Y0 to Y6 are lost.
#define FOUR(loadsAt, at, costsAt) \
	VMOVDQU     loadsAt+0(R9), X0; \
	VMOVDQU     loadsAt+24(R9), X1; \
	VINSERTI128 $1, loadsAt+48(R9), Y0, Y0; \
	VINSERTI128 $1, loadsAt+72(R9), Y1, Y1; \
	VPUNPCKLQDQ Y1, Y0, Y2; \
	VPUNPCKHQDQ Y1, Y0, Y5; \
	VPMOVZXDQ   at(R10), Y3; \
	VPMOVZXDQ   at(R11), Y6; \
	VPMULUDQ    Y13, Y3, Y4; \
	VPCMPGTQ    Y14, Y4, Y1; \
	VPBLENDVB   Y1, Y4, Y14, Y4; \
	VPADDQ      Y2, Y4, Y4; \
	FLOAT(Y4); \
	VMULPD      Y11, Y4, Y4; \
	FLOAT(Y3); \
	VMULPD      Y10, Y3, Y3; \
	VSUBPD      Y3, Y4, Y4; \
	VMAXPD      Y8, Y4, Y4; \
	VMULPD      Y9, Y4, Y4; \
	VPADDQ      Y12, Y5, Y5; \
	VPSUBQ      Y6, Y5, Y5; \
	FLOAT(Y5); \
	VADDPD      Y5, Y4, Y4; \
	VMOVUPD     Y4, costsAt(DI)

// func plainAVX2(costs *float64, candidates *worker.Slot, groups int, loads *load.Load, device, active *uint32, slots int, p *plain) (done int, over uint64)
TEXT ·plainAVX2(SB), NOSPLIT, $0-80
	MOVQ costs+0(FP), DI
	MOVQ candidates+8(FP), SI
	MOVQ groups+16(FP), CX
	MOVQ slots+48(FP), R12
	MOVQ p+56(FP), BX
	VPBROADCASTQ 0(BX), Y14  // isl
	VPBROADCASTQ 8(BX), Y13  // size
	VPBROADCASTQ 16(BX), Y12 // blocks
	VBROADCASTSD 24(BX), Y11 // perToken
	VBROADCASTSD 32(BX), Y10 // credit
	VBROADCASTSD 40(BX), Y9  // scale
	VPBROADCASTQ two52<>(SB), Y15
	VPXOR Y8, Y8, Y8
	VPXOR Y7, Y7, Y7
	SUBQ $8, R12 // the last slot that a group may begin with

eight:
	MOVL         (SI), AX
	CMPQ         AX, R12
	JGT          apart
	VPBROADCASTD (SI), Y0
	VPADDD       neighbours<>(SB), Y0, Y0
	VPCMPEQD     (SI), Y0, Y0
	VPMOVMSKB    Y0, DX
	CMPL         DX, $-1
	JNE          apart
	MOVQ         device+32(FP), R10
	MOVQ         active+40(FP), R11
	LEAQ         (R10)(AX*4), R10
	LEAQ         (R11)(AX*4), R11
	LEAQ         (AX)(AX*2), AX
	MOVQ         loads+24(FP), R9
	LEAQ         (R9)(AX*8), R9
	FOUR(0, 0, 0)
	FOUR(96, 16, 32)
	ADDQ $32, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  eight

apart:
	MOVQ groups+16(FP), AX
	SUBQ CX, AX
	MOVQ AX, done+64(FP)
	VEXTRACTI128 $1, Y7, X0
	VPOR X0, X7, X7
	VPSRLDQ $8, X7, X0
	VPOR X0, X7, X7
	VMOVQ X7, AX
	MOVQ AX, over+72(FP)
	VZEROUPPER
	RET
