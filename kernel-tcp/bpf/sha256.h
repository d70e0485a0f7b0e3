// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), in the form that the verifier of the kernel accepts: all loops have
// fixed bounds, and what does not fit in registers lies in a map that each CPU has for itself.
#pragma once

#define MESSAGE_MAX 128 // bytes, padding included: two blocks

static const __u32 sha256_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

struct hash {
    __u32 state[8];
    __u32 schedule[16];
    __u8 message[MESSAGE_MAX];
};

struct hmac_key {
    __u32 inner[8]; // the state after the block of the key and the inner padding; the loader has computed it
    __u32 outer[8]; // after the key and the outer padding
};

#define ROTATE(x, n) (((x) >> (n)) | ((x) << (32 - (n))))

// Hashes the 64 bytes of the message that begin at `at`, which is 0 or 64.
static __attribute__((noinline)) int sha256_block(struct hash *hash, __u32 at)
{
    __u32 a = hash->state[0], b = hash->state[1], c = hash->state[2], d = hash->state[3];
    __u32 e = hash->state[4], f = hash->state[5], g = hash->state[6], h = hash->state[7];

    for (__u32 i = 0; i < 64; i++) {
        __u32 *word = &hash->schedule[i & 15];

        if (i < 16) {
            *word = bpf_ntohl(*(__u32 *)(hash->message + (at & 64) + 4 * i));
        } else {
            __u32 w1 = hash->schedule[(i + 1) & 15], w14 = hash->schedule[(i + 14) & 15];

            *word += (ROTATE(w1, 7) ^ ROTATE(w1, 18) ^ (w1 >> 3)) + hash->schedule[(i + 9) & 15] +
                     (ROTATE(w14, 17) ^ ROTATE(w14, 19) ^ (w14 >> 10));
        }
        __u32 t1 = h + (ROTATE(e, 6) ^ ROTATE(e, 11) ^ ROTATE(e, 25)) + ((e & f) ^ (~e & g)) +
                   sha256_constants[i & 63] + *word;
        __u32 t2 = (ROTATE(a, 2) ^ ROTATE(a, 13) ^ ROTATE(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));

        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    hash->state[0] += a, hash->state[1] += b, hash->state[2] += c, hash->state[3] += d;
    hash->state[4] += e, hash->state[5] += f, hash->state[6] += g, hash->state[7] += h;
    return 0;
}

// Ends a message of `len` bytes that follow one block of the key, and hashes it.
static __always_inline void sha256_rest(struct hash *hash, const __u32 *start, __u32 len)
{
    __u32 two_blocks = len + 9 > 64;

    __builtin_memcpy(hash->state, start, sizeof(hash->state));
    hash->message[len & (MESSAGE_MAX - 1)] = 0x80;
    *(__u32 *)(hash->message + (two_blocks ? 124 : 60)) = bpf_htonl((64 + len) * 8);
    sha256_block(hash, 0);
    if (two_blocks)
        sha256_block(hash, 64);
}

// The first 8 bytes of the HMAC of the first `len` bytes of the message, behind which it has zeros.
static __always_inline __u64 hmac_sha256(struct hash *hash, const struct hmac_key *key, __u32 len)
{
    sha256_rest(hash, key->inner, len);
    __builtin_memset(hash->message, 0, sizeof(hash->message));
    for (__u32 i = 0; i < 8; i++)
        *(__u32 *)(hash->message + 4 * i) = bpf_htonl(hash->state[i]);
    sha256_rest(hash, key->outer, 32);
    return (__u64)hash->state[0] << 32 | hash->state[1];
}
