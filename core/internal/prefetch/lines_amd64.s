//go:build !noasm

#include "textflag.h"

// func lines(first *uintptr, n int)
TEXT ·lines(SB), NOSPLIT, $0-16
	MOVQ first+0(FP), SI
	MOVQ n+8(FP), CX

next:
	MOVQ        (SI), AX
	PREFETCHT0  (AX)
	ADDQ        $8, SI
	DECQ        CX
	JNZ         next
	RET

// func run(first unsafe.Pointer, n int)
TEXT ·run(SB), NOSPLIT, $0-16
	MOVQ first+0(FP), SI
	MOVQ n+8(FP), CX

next:
	PREFETCHT0 (SI)
	ADDQ       $64, SI
	DECQ       CX
	JNZ        next
	RET
