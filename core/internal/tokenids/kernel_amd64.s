//go:build !noasm

#include "textflag.h"

// PLACE writes the place of the lowest bit of AX, plus R8, to at(DI), and clears the bit.
#define PLACE(at) \
	TZCNTQ AX, R12; \
	ADDL   R8, R12; \
	MOVL   R12, at(DI); \
	BLSRQ  AX, AX

// func commasAVX2(to *int32, d *byte, blocks, gap int) (found int)
//
// It holds, throughout:
//
//	SI  the block, CX blocks left, R8 where the block begins in d
//	DI  where the next place goes
//	R9  1 if a comma was the last byte of the block before
//	DX  gap, Y14 spaces, Y15 commas
TEXT ·commasAVX2(SB), NOSPLIT, $0-40
	MOVQ         to+0(FP), DI
	MOVQ         d+8(FP), SI
	MOVQ         blocks+16(FP), CX
	MOVQ         gap+24(FP), DX
	VPBROADCASTB comma<>(SB), Y15
	VPBROADCASTB space<>(SB), Y14
	XORL         R8, R8
	XORL         R9, R9

block:
	VMOVDQU   (SI), Y0
	VMOVDQU   32(SI), Y1
	VPCMPEQB  Y15, Y0, Y2
	VPCMPEQB  Y15, Y1, Y3
	VPMOVMSKB Y2, AX
	VPMOVMSKB Y3, BX
	SHLQ      $32, BX
	ORQ       BX, AX
	TESTQ     DX, DX
	JZ        places
	VPCMPEQB  Y14, Y0, Y2
	VPCMPEQB  Y14, Y1, Y3
	VPMOVMSKB Y2, R10
	VPMOVMSKB Y3, BX
	SHLQ      $32, BX
	ORQ       BX, R10
	LEAQ      (R9)(AX*2), R11
	CMPQ      R10, R11
	JNE       done
	MOVQ      AX, R9
	SHRQ      $63, R9

places:
	POPCNTQ AX, R13
	LEAQ    (DI)(R13*4), R13

	// Eight at a time, whatever there are: what was written too much is written over.
eight:
	PLACE(0)
	PLACE(4)
	PLACE(8)
	PLACE(12)
	PLACE(16)
	PLACE(20)
	PLACE(24)
	PLACE(28)
	ADDQ  $32, DI
	TESTQ AX, AX
	JNZ   eight
	MOVQ  R13, DI
	ADDQ  $64, SI
	ADDL  $64, R8
	DECQ  CX
	JNZ   block

done:
	SUBQ to+0(FP), DI
	SHRQ $2, DI
	MOVQ DI, found+32(FP)
	VZEROUPPER
	RET

// func convertAVX2(to *uint32, d *byte, ends *[1 + commas]int32, groups, gap int) (read int)
//
// It holds, throughout:
//
//	SI  d, BX the end before those of the group, CX groups left, AX groups read
//	DI  where the ids of the group go
//	X9  gap + 1, Y8 all bits, Y7 64 in each quadword, X6 all bits but those of 0 to 7 in each doubleword
//	Y10 least numbers of 1 to 8 digits, Y11 to Y13 what digits count, Y14 nines, Y15 zeros as digits
TEXT ·convertAVX2(SB), NOSPLIT, $0-48
	MOVQ         to+0(FP), DI
	MOVQ         d+8(FP), SI
	MOVQ         ends+16(FP), BX
	MOVQ         groups+24(FP), CX
	MOVQ         gap+32(FP), DX
	INCQ         DX
	VMOVQ        DX, X9
	VPBROADCASTD X9, X9
	VPCMPEQD     Y8, Y8, Y8
	VPSRLQ       $63, Y8, Y7
	VPSLLQ       $6, Y7, Y7
	VPSLLD       $3, X8, X6
	VMOVDQU      least8<>(SB), Y10
	VPBROADCASTD fours<>(SB), Y11
	VPBROADCASTD pairs<>(SB), Y12
	VPBROADCASTW ones8<>(SB), Y13
	VPBROADCASTB nine<>(SB), Y14
	VPBROADCASTB zero<>(SB), Y15
	XORL         AX, AX

group:
	// The eight bytes up to each end.
	MOVL        4(BX), R8
	MOVL        8(BX), R9
	MOVL        12(BX), R10
	MOVL        16(BX), R11
	VMOVQ       (SI)(R8*1), X2
	VPINSRQ     $1, (SI)(R9*1), X2, X2
	VMOVQ       (SI)(R10*1), X3
	VPINSRQ     $1, (SI)(R11*1), X3, X3
	VINSERTI128 $1, X3, Y2, Y2
	VPXOR       Y15, Y2, Y2

	// X1 is how many of them are digits; all others become 0.
	VMOVDQU   4(BX), X1
	VPSUBD    (BX), X1, X1
	VPSUBD    X9, X1, X1
	VPMOVZXDQ X1, Y3
	VPSLLQ    $3, Y3, Y3
	VPSUBQ    Y3, Y7, Y3
	VPSLLVQ   Y3, Y8, Y3
	VPAND     Y3, Y2, Y2

	// X5 is the numbers: pairs of digits, then fours, then all.
	VPMADDUBSW Y13, Y2, Y5
	VPMADDWD   Y12, Y5, Y5
	VPACKUSDW  Y5, Y5, Y5
	VPMADDWD   Y11, Y5, Y5
	VPERMQ     $8, Y5, Y5

	// Y4 is not 0 if one has another byte than digits, a zero in front, or none or more than eight.
	VPSUBUSB Y14, Y2, Y4
	VPADDD   X8, X1, X1
	VPERMD   Y10, Y1, Y0
	VPCMPGTD X5, X0, X0
	VPAND    X6, X1, X1
	VPOR     X1, X0, X0
	VPOR     Y0, Y4, Y4
	VPTEST   Y4, Y4
	JNZ      done
	VMOVDQU  X5, (DI)
	ADDQ     $16, DI
	ADDQ     $16, BX
	INCQ     AX
	DECQ     CX
	JNZ      group

done:
	MOVQ AX, read+40(FP)
	VZEROUPPER
	RET

DATA comma<>+0(SB)/1, $0x2c
GLOBL comma<>(SB), RODATA|NOPTR, $1
DATA space<>+0(SB)/1, $0x20
GLOBL space<>(SB), RODATA|NOPTR, $1
DATA zero<>+0(SB)/1, $0x30
GLOBL zero<>(SB), RODATA|NOPTR, $1
DATA nine<>+0(SB)/1, $9
GLOBL nine<>(SB), RODATA|NOPTR, $1

// What the first and the second one of two count: bytes, words of two digits, words of four.
DATA ones8<>+0(SB)/2, $0x010a
GLOBL ones8<>(SB), RODATA|NOPTR, $2
DATA pairs<>+0(SB)/4, $0x00010064
GLOBL pairs<>(SB), RODATA|NOPTR, $4
DATA fours<>+0(SB)/4, $0x00012710
GLOBL fours<>(SB), RODATA|NOPTR, $4

DATA least8<>+0(SB)/4, $0
DATA least8<>+4(SB)/4, $10
DATA least8<>+8(SB)/4, $100
DATA least8<>+12(SB)/4, $1000
DATA least8<>+16(SB)/4, $10000
DATA least8<>+20(SB)/4, $100000
DATA least8<>+24(SB)/4, $1000000
DATA least8<>+28(SB)/4, $10000000
GLOBL least8<>(SB), RODATA|NOPTR, $32
