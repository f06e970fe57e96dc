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

// func lowestAVX512(costs *float64, pairs int) (least float64, first, ties int)
//
// It is lowestAVX2, for pairs of groups.
TEXT ·lowestAVX512(SB), NOSPLIT, $0-40
	MOVQ         costs+0(FP), SI
	MOVQ         pairs+8(FP), CX
	VBROADCASTSD infinity<>(SB), Z0
	VMOVAPD      Z0, Z1

next:
	VMOVUPD (SI), Z2
	VMOVUPD 64(SI), Z3
	VMINPD  Z0, Z2, Z0
	VMINPD  Z1, Z3, Z1
	SUBQ    $-128, SI
	DECQ    CX
	JNZ     next

	VMINPD        Z1, Z0, Z0
	VEXTRACTF64X4 $1, Z0, Y1
	VMINPD        Y1, Y0, Y0
	VEXTRACTF128  $1, Y0, X1
	VMINPD        X1, X0, X0
	VPERMILPD     $1, X0, X1
	VMINPD        X1, X0, X0
	VMOVSD        X0, least+16(FP)
	VBROADCASTSD  X0, Z0

	MOVQ costs+0(FP), SI
	MOVQ pairs+8(FP), CX
	XORL DX, DX // the position
	XORL R8, R8 // ties
	XORL R9, R9 // the first of them

where:
	VCMPPD   $0, (SI), Z0, K1
	VCMPPD   $0, 64(SI), Z0, K2
	KUNPCKBW K1, K2, K1
	KMOVW    K1, AX
	TESTL    AX, AX
	JZ       none
	TESTQ    R8, R8
	JNZ      count
	BSFL     AX, R9
	ADDQ     DX, R9

count:
	POPCNTL AX, AX
	ADDQ    AX, R8

none:
	ADDQ $16, DX
	SUBQ $-128, SI
	DECQ CX
	JNZ  where
	MOVQ R9, first+24(FP)
	MOVQ R8, ties+32(FP)
	VZEROUPPER
	RET

// Where eight loads of three words each, in three registers, have a word: first those of the first two registers, then what that gave
// and those of the third.
DATA prefills<>+0(SB)/8, $0
DATA prefills<>+8(SB)/8, $3
DATA prefills<>+16(SB)/8, $6
DATA prefills<>+24(SB)/8, $9
DATA prefills<>+32(SB)/8, $12
DATA prefills<>+40(SB)/8, $15
DATA prefills<>+48(SB)/8, $0
DATA prefills<>+56(SB)/8, $0
DATA prefills<>+64(SB)/8, $0
DATA prefills<>+72(SB)/8, $1
DATA prefills<>+80(SB)/8, $2
DATA prefills<>+88(SB)/8, $3
DATA prefills<>+96(SB)/8, $4
DATA prefills<>+104(SB)/8, $5
DATA prefills<>+112(SB)/8, $10
DATA prefills<>+120(SB)/8, $13
GLOBL prefills<>(SB), RODATA|NOPTR, $128

DATA held<>+0(SB)/8, $1
DATA held<>+8(SB)/8, $4
DATA held<>+16(SB)/8, $7
DATA held<>+24(SB)/8, $10
DATA held<>+32(SB)/8, $13
DATA held<>+40(SB)/8, $0
DATA held<>+48(SB)/8, $0
DATA held<>+56(SB)/8, $0
DATA held<>+64(SB)/8, $0
DATA held<>+72(SB)/8, $1
DATA held<>+80(SB)/8, $2
DATA held<>+88(SB)/8, $3
DATA held<>+96(SB)/8, $4
DATA held<>+104(SB)/8, $8
DATA held<>+112(SB)/8, $11
DATA held<>+120(SB)/8, $14
GLOBL held<>(SB), RODATA|NOPTR, $128

// func plainAVX512(costs *float64, candidates *worker.Slot, groups int, loads *load.Load, device, active *uint32, slots int, p *plain) (done int)
//
// It is plainAVX2 with a conversion of integers of any size, which rounds as Go's does.
TEXT ·plainAVX512(SB), NOSPLIT, $0-72
	MOVQ costs+0(FP), DI
	MOVQ candidates+8(FP), SI
	MOVQ groups+16(FP), CX
	MOVQ loads+24(FP), R8
	MOVQ device+32(FP), R10
	MOVQ active+40(FP), R11
	MOVQ slots+48(FP), R12
	MOVQ p+56(FP), BX
	VPBROADCASTQ 0(BX), Z14  // isl
	VPBROADCASTQ 8(BX), Z13  // size
	VPBROADCASTQ 16(BX), Z12 // blocks
	VBROADCASTSD 24(BX), Z11 // perToken
	VBROADCASTSD 32(BX), Z10 // credit
	VBROADCASTSD 40(BX), Z9  // scale
	VMOVDQU64 prefills<>+0(SB), Z16
	VMOVDQU64 prefills<>+64(SB), Z17
	VMOVDQU64 held<>+0(SB), Z18
	VMOVDQU64 held<>+64(SB), Z19
	VMOVDQU neighbours<>(SB), Y15
	VPXORQ Z8, Z8, Z8
	SUBQ $8, R12 // the last slot that a group may begin with

eight:
	MOVL         (SI), AX
	CMPQ         AX, R12
	JGT          apart
	VPBROADCASTD (SI), Y0
	VPADDD       Y15, Y0, Y0
	VPCMPEQD     (SI), Y0, Y0
	VPMOVMSKB    Y0, DX
	CMPL         DX, $-1
	JNE          apart
	LEAQ         (AX)(AX*2), R9
	LEAQ         (R8)(R9*8), R9
	VMOVDQU64    0(R9), Z0
	VMOVDQA64    Z0, Z1
	VMOVDQU64    64(R9), Z2
	VMOVDQU64    128(R9), Z3
	VPERMT2Q     Z2, Z16, Z0
	VPERMT2Q     Z2, Z18, Z1
	VPERMT2Q     Z3, Z17, Z0 // prefill tokens
	VPERMT2Q     Z3, Z19, Z1 // blocks
	VPMOVZXDQ    (R10)(AX*4), Z3
	VPMOVZXDQ    (R11)(AX*4), Z6
	VPMULUDQ     Z13, Z3, Z4
	VPMAXSQ      Z14, Z4, Z4
	VPADDQ       Z0, Z4, Z4
	VCVTQQ2PD    Z4, Z4
	VMULPD       Z11, Z4, Z4
	VCVTQQ2PD    Z3, Z3
	VMULPD       Z10, Z3, Z3
	VSUBPD       Z3, Z4, Z4
	VMAXPD       Z8, Z4, Z4
	VMULPD       Z9, Z4, Z4
	VPADDQ       Z12, Z1, Z1
	VPSUBQ       Z6, Z1, Z1
	VCVTQQ2PD    Z1, Z1
	VADDPD       Z1, Z4, Z4
	VMOVUPD      Z4, (DI)
	ADDQ $32, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  eight

apart:
	MOVQ groups+16(FP), AX
	SUBQ CX, AX
	MOVQ AX, done+64(FP)
	VZEROUPPER
	RET
