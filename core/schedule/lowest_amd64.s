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
