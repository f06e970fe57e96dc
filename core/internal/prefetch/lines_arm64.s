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

// func run(first unsafe.Pointer, n int, once bool)
TEXT ·run(SB), NOSPLIT, $0-17
	MOVD  first+0(FP), R0
	MOVD  n+8(FP), R1
	MOVBU once+16(FP), R2
	CBNZ  R2, apart

next:
	PRFM (R0), PLDL1KEEP
	ADD  $64, R0
	SUBS $1, R1
	BNE  next
	RET

apart:
	PRFM (R0), PLDL1STRM
	ADD  $64, R0
	SUBS $1, R1
	BNE  apart
	RET
