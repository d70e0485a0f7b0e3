// SPDX-License-Identifier: MIT OR Apache-2.0
//
// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), in a form that the verifier of the kernel accepts.
#pragma once

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define BLOCK 64

// A message, and what HMAC needs beside it. It is too large for the stack.
struct hash {
	__u32 state[8];
	__u32 schedule[16]; // of the last 16 rounds
	__u8 message[256 + BLOCK]; // the second part is for the verifier: a block may begin at 255
};

// What HMAC has hashed before a message begins: the block of the inner padding, and that of the outer one.
struct hmac_key {
	__u32 inner[8];
	__u32 outer[8];
};

static const __u32 constants[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

// BPF has no rotations. Those of a number to the right, by up to 32 bits altogether, are shifts of the number twice in a row.
static __always_inline __u64 twice(__u32 x)
{
	return (__u64)x << 32 | x;
}

// Rotates by n, by n + m, and by n + m + l.
#define ROTATE_3(x, n, m, l) ((__u32)(((((x) >> (l) ^ (x)) >> (m)) ^ (x)) >> (n)))
#define ROTATE_2(x, n, m) ((__u32)(((x) >> (m) ^ (x)) >> (n)))

// Without the barrier, the compiler reorders rounds until no stack is large enough.
#define ROUND(a, b, c, d, e, f, g, h, i)                                                            \
	do {                                                                                        \
		__u64 ee = twice(e), aa = twice(a);                                                 \
		h += ROTATE_3(ee, 6, 5, 14) + (g ^ (e & (f ^ g))) + constants[round + (i)] + w[i];  \
		d += h;                                                                             \
		h += ROTATE_3(aa, 2, 11, 9) + ((a & b) | (c & (a | b)));                            \
		asm volatile("" : "+r"(d), "+r"(h)::"memory");                                      \
	} while (0)

// The word of the schedule for the round that comes 16 rounds after this one.
#define SCHEDULE(i)                                                                                 \
	do {                                                                                        \
		__u32 x = w[((i) + 1) & 15], y = w[((i) + 14) & 15];                                \
		__u64 xx = twice(x), yy = twice(y);                                                 \
		w[i] += (ROTATE_2(xx, 7, 11) ^ (x >> 3)) + w[((i) + 9) & 15] +                      \
			(ROTATE_2(yy, 17, 2) ^ (y >> 10));                                          \
		asm volatile("" ::: "memory");                                                      \
	} while (0)

#define EIGHT_ROUNDS(i)                           \
	ROUND(a, b, c, d, e, f, g, h, (i));       \
	ROUND(h, a, b, c, d, e, f, g, (i) + 1);   \
	ROUND(g, h, a, b, c, d, e, f, (i) + 2);   \
	ROUND(f, g, h, a, b, c, d, e, (i) + 3);   \
	ROUND(e, f, g, h, a, b, c, d, (i) + 4);   \
	ROUND(d, e, f, g, h, a, b, c, (i) + 5);   \
	ROUND(c, d, e, f, g, h, a, b, (i) + 6);   \
	ROUND(b, c, d, e, f, g, h, a, (i) + 7)

// Hashes the block of the message that begins at `at`, a multiple of 4 below 256. The verifier sees a function that is
// not static only once.
__attribute__((noinline)) int sha256_block(struct hash *hash, __u32 at)
{
	if (!hash)
		return 0;
	__u32 *w = hash->schedule;
	__u32 a = hash->state[0], b = hash->state[1], c = hash->state[2], d = hash->state[3];
	__u32 e = hash->state[4], f = hash->state[5], g = hash->state[6], h = hash->state[7];

	at &= 0xfc;
	for (__u32 i = 0; i < 16; i++)
		w[i] = bpf_ntohl(*(__u32 *)(hash->message + at + 4 * i));
#pragma clang loop unroll(disable)
	for (__u32 round = 0; round < 64; round += 16) {
		EIGHT_ROUNDS(0);
		EIGHT_ROUNDS(8);
		if (round == 48)
			break;
#pragma unroll
		for (int i = 0; i < 16; i++)
			SCHEDULE(i);
	}
	hash->state[0] += a, hash->state[1] += b, hash->state[2] += c, hash->state[3] += d;
	hash->state[4] += e, hash->state[5] += f, hash->state[6] += g, hash->state[7] += h;
	return 0;
}

// Pads and hashes the message from `start` to `end`, of at most 3 blocks with the padding, after a block of the key.
static __always_inline void sha256_rest(struct hash *hash, const __u32 *key, __u32 start, __u32 end)
{
	__u32 length = end - start, padded = (length + 1 + 8 + BLOCK - 1) & ~(BLOCK - 1);

	__builtin_memcpy(hash->state, key, sizeof(hash->state));
	for (__u32 i = 0; i <= BLOCK / 4; i++) // as much as any padding, but for its last word
		*(__u32 *)(hash->message + (end & 0xfc) + 4 * i) = i ? 0 : bpf_htonl(0x80000000);
	*(__u32 *)(hash->message + ((start + padded - 4) & 0xfc)) = bpf_htonl((BLOCK + length) * 8);
	sha256_block(hash, start);
	if (padded > BLOCK)
		sha256_block(hash, start + BLOCK);
	if (padded > 2 * BLOCK)
		sha256_block(hash, start + 2 * BLOCK);
}

// The HMAC of the message from `start` to `end`, multiples of 4, as numbers in the order of the host: `hash->state`.
static __always_inline void hmac_sha256(struct hash *hash, const struct hmac_key *key, __u32 start, __u32 end)
{
	sha256_rest(hash, key->inner, start, end);
#pragma unroll
	for (int i = 0; i < 8; i++)
		*(__u32 *)(hash->message + 4 * i) = bpf_htonl(hash->state[i]);
	sha256_rest(hash, key->outer, 0, 32);
}
