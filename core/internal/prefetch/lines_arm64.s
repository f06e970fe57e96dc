//go:build !noasm

#include "textflag.h"

// func lines(first *uintptr, n int)
TEXT ·lines(SB), NOSPLIT, $0-16
	MOVD first+0(FP), R0
	MOVD n+8(FP), R1

next:
	MOVD.P 8(R0), R2
	PRFM   (R2), PLDL1KEEP
	SUBS   $1, R1
	BNE    next
	RET

// func run(first unsafe.Pointer, n int)
TEXT ·run(SB), NOSPLIT, $0-16
	MOVD first+0(FP), R0
	MOVD n+8(FP), R1

next:
	PRFM (R0), PLDL1KEEP
	ADD  $64, R0
	SUBS $1, R1
	BNE  next
	RET
