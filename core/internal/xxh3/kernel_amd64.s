//go:build !noasm

#include "textflag.h"

// bothAVX2 hashes four blocks at a time, in the four lanes of a register, because that leaves the integer units to the chain.
// It holds, throughout:
//
//	SI  tokens of four blocks, 64 bytes a block
//	DI  where hashes of four blocks are or go
//	CX  groups of four blocks left
//	Y10 the multiplier of the avalanche, Y11 its upper half, Y12 what sums start from, Y13 low halves of lanes
//	Y14 the key of words 0 to 3 of a block, Y15 of words 4 to 7
//
// A multiplication of 64 by 64 bits is made of four of 32 by 32. BP and the stack are not touched, here and below.

// FOLD multiplies the lanes of x and y to 128 bits and leaves the xor of the halves in x: fold of kernel_go.go. y and Y4 to
// Y6 are lost. With x = a + b<<32 and y = c + d<<32: ac is Y6, ad x, bc y, bd Y5.
#define FOLD(x, y) \
	VPSRLQ   $32, x, Y4; \
	VPSRLQ   $32, y, Y5; \
	VPMULUDQ x, y, Y6; \
	VPMULUDQ x, Y5, x; \
	VPMULUDQ Y4, y, y; \
	VPMULUDQ Y4, Y5, Y5; \
	VPSRLQ   $32, Y6, Y4; \
	VPADDQ   Y4, y, y; \
	VPAND    Y13, y, Y4; \
	VPADDQ   Y4, x, x; \
	VPSRLQ   $32, y, y; \
	VPADDQ   y, Y5, Y5; \
	VPSRLQ   $32, x, Y4; \
	VPADDQ   Y4, Y5, Y5; \
	VPSLLQ   $32, x, x; \
	VPBLENDD $0xaa, x, Y6, Y6; \
	VPXOR    Y5, Y6, x

// TWO leaves in sum, for the blocks at at(SI) and at+64(SI), the sum of two of their products in the lower lanes and of
// the other two in the upper ones. Y0 to Y6 are lost.
#define TWO(at, sum) \
	VPXOR       at+0(SI), Y14, Y0; \
	VPXOR       at+64(SI), Y14, Y1; \
	VPUNPCKLQDQ Y1, Y0, Y2; \
	VPUNPCKHQDQ Y1, Y0, Y3; \
	FOLD(Y2, Y3); \
	VPXOR       at+32(SI), Y15, Y0; \
	VPXOR       at+96(SI), Y15, Y1; \
	VPUNPCKLQDQ Y1, Y0, Y3; \
	VPUNPCKHQDQ Y1, Y0, Y0; \
	FOLD(Y3, Y0); \
	VPADDQ      Y2, Y3, sum

// SUM stores at at(DI) the hashes of the four blocks that Y7 and Y8 hold the sums of two of: the rest of key.sum of
// kernel_go.go, its avalanche included. Y0 to Y2 are lost.
#define SUM(at) \
	VPERM2I128 $0x20, Y8, Y7, Y0; \
	VPERM2I128 $0x31, Y8, Y7, Y1; \
	VPADDQ     Y1, Y0, Y0; \
	VPADDQ     Y12, Y0, Y0; \
	VPSRLQ     $37, Y0, Y1; \
	VPXOR      Y1, Y0, Y0; \
	VPSRLQ     $32, Y0, Y1; \
	VPMULUDQ   Y10, Y1, Y1; \
	VPMULUDQ   Y11, Y0, Y2; \
	VPADDQ     Y2, Y1, Y1; \
	VPSLLQ     $32, Y1, Y1; \
	VPMULUDQ   Y10, Y0, Y0; \
	VPADDQ     Y1, Y0, Y0; \
	VPSRLQ     $32, Y0, Y1; \
	VPXOR      Y1, Y0, Y0; \
	VMOVDQU    Y0, at(DI)

// CONSTANTS fills Y10 to Y15 from the key at k.
#define CONSTANTS(k) \
	VPBROADCASTQ avalancher<>(SB), Y10; \
	VPSRLQ       $32, Y10, Y11; \
	VPBROADCASTQ start64<>(SB), Y12; \
	VPCMPEQD     Y13, Y13, Y13; \
	VPSRLQ       $32, Y13, Y13; \
	VMOVDQU      0(k), Y14; \
	VMOVDQU      32(k), Y15

// STEP is one step of the chain: the state R11 is the parent with the first xor of the step already in, which costs nothing
// beside the last shift of the step before. R10 holds the multiplier of the avalanche, R12 and R14 chainHigh and chainLow.
#define STEP(at) \
	MOVQ   at(DI), BX; \
	XORQ   R12, BX; \
	MOVQ   R11, AX; \
	MULQ   BX; \
	ADDQ   $16, BX; \
	BSWAPQ R11; \
	ADDQ   R11, BX; \
	XORQ   DX, AX; \
	ADDQ   BX, AX; \
	MOVQ   AX, DX; \
	SHRQ   $37, DX; \
	XORQ   DX, AX; \
	IMULQ  R10, AX; \
	MOVQ   AX, R11; \
	SHRQ   $32, AX; \
	XORQ   R14, R11; \
	XORQ   AX, R11; \
	MOVQ   R11, AX; \
	XORQ   R14, AX; \
	MOVQ   AX, at(R8)

DATA avalancher<>+0(SB)/8, $0x165667919e3779f9
GLOBL avalancher<>(SB), RODATA|NOPTR, $8
DATA start64<>+0(SB)/8, $0x8dde6c617af2a1c0
GLOBL start64<>(SB), RODATA|NOPTR, $8

// AHEAD is how many blocks ahead of the one that it hashes a kernel fetches tokens into the cache: a page. A prompt is read once, and often
// nobody read it just before. Within a page the processor fetches ahead by itself, once it has seen where the reader goes, but it stops at the
// page's end, and what comes next waits for a translation too. Nothing is fetched beyond the last token: where there is no memory, each try walks
// the page table, which was found to double the time of a prompt of 128 blocks.
#define AHEAD 64

// FETCH4 fetches the tokens of four blocks, into all caches: what was read may be read again, and a processor may drop what it was asked to read once.
#define FETCH4(at, r) \
	PREFETCHT0 at+0(r); \
	PREFETCHT0 at+64(r); \
	PREFETCHT0 at+128(r); \
	PREFETCHT0 at+192(r)

// PRODUCT adds to R8 the fold of the words of tokens at at(SI) and at+8(SI) under the keys x and y.
#define PRODUCT(at, x, y) \
	MOVQ at+0(SI), AX; \
	MOVQ at+8(SI), DX; \
	XORQ x, AX; \
	XORQ y, DX; \
	MULQ DX; \
	XORQ DX, AX; \
	ADDQ AX, R8

// BLOCK stores at out(DI) the hash of the block at at(SI), by the integer units. AX, DX and R8 are lost.
#define BLOCK(at, out) \
	MOVQ  start64<>(SB), R8; \
	PRODUCT(at+0, R9, R10); \
	PRODUCT(at+16, R11, R12); \
	PRODUCT(at+32, R13, R14); \
	PRODUCT(at+48, R15, BX); \
	MOVQ  R8, AX; \
	SHRQ  $37, AX; \
	XORQ  AX, R8; \
	IMULQ avalancher<>(SB), R8; \
	MOVQ  R8, AX; \
	SHRQ  $32, AX; \
	XORQ  AX, R8; \
	MOVQ  R8, out(DI)

// KEY fills R9 to R15 and BX from the key at BX.
#define KEY \
	MOVQ 0(BX), R9; \
	MOVQ 8(BX), R10; \
	MOVQ 16(BX), R11; \
	MOVQ 24(BX), R12; \
	MOVQ 32(BX), R13; \
	MOVQ 40(BX), R14; \
	MOVQ 48(BX), R15; \
	MOVQ 56(BX), BX

// func blocksMul(dst *uint64, tokens *uint32, n int, k *key)
TEXT ·blocksMul(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ tokens+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), BX
	KEY

next:
	BLOCK(0, 0)
	ADDQ $64, SI
	ADDQ $8, DI
	DECQ CX
	JNZ  next
	RET

// SPARING and MANY are what AHEAD is to blocksAVX2, which is through a page before the next one is there, and how many blocks it fetches before it
// hashes the first: of processors that are asked sparingly (prefetch.Sparing), as many as they keep in flight; of others a page and a half.
#define SPARING 24
#define MANY 96

// BLOCKS is blocksAVX2, its arguments in DI, SI, CX and BX, which fetches tokens NEAR blocks ahead.
//
// Without a chain to wait for, the integer units do five multiplications a block in the time in which vectors do the sixteen of half the width that
// they need: so each takes four blocks of a group of eight, side by side.
#define BLOCKS(NEAR) \
	CONSTANTS(BX); \
	KEY; \
	MOVQ    SI, AX; \
	MOVQ    $(NEAR/8), DX; \
	CMPQ    CX, DX; \
	CMOVQLT CX, DX; \
first: \
	FETCH4(0, AX); \
	FETCH4(256, AX); \
	ADDQ    $512, AX; \
	DECQ    DX; \
	JNZ     first; \
eight: \
	CMPQ    CX, $(NEAR/8); \
	JLE     near; \
	FETCH4(NEAR*64, SI); \
	FETCH4(NEAR*64+256, SI); \
near: \
	TWO(0, Y7); \
	BLOCK(256, 32); \
	TWO(128, Y8); \
	BLOCK(320, 40); \
	SUM(0); \
	BLOCK(384, 48); \
	BLOCK(448, 56); \
	ADDQ    $512, SI; \
	ADDQ    $64, DI; \
	DECQ    CX; \
	JNZ     eight; \
	VZEROUPPER; \
	RET

// func blocksSparing(dst *uint64, tokens *uint32, groups int, k *key)
TEXT ·blocksSparing(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ tokens+8(FP), SI
	MOVQ groups+16(FP), CX
	MOVQ k+24(FP), BX
	BLOCKS(SPARING)

// func blocksAVX2(dst *uint64, tokens *uint32, groups int, k *key)
TEXT ·blocksAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ tokens+8(FP), SI
	MOVQ groups+16(FP), CX
	MOVQ k+24(FP), BX
	BLOCKS(MANY)

// func bothAVX2(dst, seqs *uint64, tokens *uint32, groups int, k *key, parent *uint64)
//
// The chain is the critical path: each step waits for the one before. So the loop walks the chain of one group and, between
// the steps, hashes the group after it: in this order no processor has to look far ahead to be busy while it waits.
TEXT ·bothAVX2(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ seqs+8(FP), R8
	MOVQ tokens+16(FP), SI
	MOVQ groups+24(FP), CX
	MOVQ k+32(FP), BX
	MOVQ parent+40(FP), DX
	CONSTANTS(BX)
	MOVQ avalancher<>(SB), R10
	MOVQ $0xaf56bc3b09964d01, R12
	MOVQ $0x6782737bea423ef2, R14
	TWO(0, Y7)
	TWO(128, Y8)
	SUM(0)
	TESTQ DX, DX
	JZ   root
	MOVQ (DX), R11
	XORQ R14, R11
	DECQ CX
	JZ   last

both:
	STEP(0)

below:
	CMPQ CX, $(AHEAD/4)
	JLE  near
	FETCH4(AHEAD*64, SI)

near:
	ADDQ $256, SI
	TWO(0, Y7)
	STEP(8)
	TWO(128, Y8)
	STEP(16)
	SUM(32)
	STEP(24)
	ADDQ $32, DI
	ADDQ $32, R8
	DECQ CX
	JNZ  both

last:
	STEP(0)

end:
	STEP(8)
	STEP(16)
	STEP(24)
	VZEROUPPER
	RET

root: // the first sequence hash is the first block's hash
	MOVQ (DI), R11
	MOVQ R11, (R8)
	XORQ R14, R11
	DECQ CX
	JNZ  below
	JMP  end
