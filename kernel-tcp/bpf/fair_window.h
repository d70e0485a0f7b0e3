// The fair window: CUBIC (RFC 9438), in integers. What it counts is up to its caller: with two domains, data on the
// way to the PEP; with one, data on the way to the receiver.
#pragma once

#define PACKET 1024u // windows count packets of 1/1024
#define WINDOW_MIN (2 * PACKET)
#define WINDOW_MAX (1u << 30)
#define NO_THRESHOLD WINDOW_MAX

static __always_inline __u64 cube_root(__u64 x)
{
    __u64 root = 0;

    for (int bit = 20; bit >= 0; bit--) {
        __u64 more = root | 1ull << bit;

        if (more * more * more <= x)
            root = more;
    }
    return root;
}

// RFC 9438 section 4.6, with beta = 0.7 and the fast convergence of section 4.7.
static __always_inline void reduce(struct connection *c, __u32 sent)
{
    c->window_undo = c->window;
    c->window_max = c->window < c->window_max ? (__u64)c->window * 85 / 100 : c->window;
    c->window = max_of((__u64)c->window * 7 / 10, WINDOW_MIN);
    c->ssthresh = c->window;
    c->epoch_ns = 0;
    c->recover = sent;
    count(REDUCTIONS, 1);
}

// The window of W_cubic (RFC 9438 section 4.2): C (t - K)^3 + W_max, with C = 0.4 packets/s^3.
static __always_inline __u32 cubic_window(const struct connection *c, __u64 t_ms)
{
    __u64 distance = t_ms > c->k_ms ? t_ms - c->k_ms : c->k_ms - t_ms;

    if (distance > 200000)
        distance = 200000;
    __u64 change = distance * distance * distance / 10 * 4 / 976562; // 0.4 PACKET / (1000 ms)^3

    if (t_ms > c->k_ms)
        return change < WINDOW_MAX - c->window_max ? c->window_max + change : WINDOW_MAX;
    return change < c->window_max ? c->window_max - change : 0;
}

// Grows by `acked` packets that have arrived. `limited`: the sender has used the window.
static __always_inline void grow(struct connection *c, __u32 acked, bool limited, __u32 rtt_us, __u64 now)
{
    if (!limited || !acked) {
        if (!limited)
            c->epoch_ns = 0;
        return;
    }
    if (c->window < c->ssthresh) {
        c->window = min_of(c->window + acked * PACKET, WINDOW_MAX);
        return;
    }
    if (!c->epoch_ns) {
        c->epoch_ns = now;
        c->window_reno = c->window;
        if (c->window_max < c->window)
            c->window_max = c->window;
        // K = cbrt((W_max - W) / C): in ms, 10^9 / 0.4 / PACKET = 2441406
        c->k_ms = cube_root((__u64)(c->window_max - c->window) * 2441406);
    }
    __u64 t_ms = (now - c->epoch_ns) / 1000000 + rtt_us / 1000;
    __u32 target = min_of(cubic_window(c, t_ms), c->window + c->window / 2);

    if (target > c->window)
        c->window += (__u64)(target - c->window) * acked * PACKET / c->window;
    // As fast as Reno with the same beta, where that is faster (section 4.3).
    __u32 alpha = c->window_reno < c->window_max ? 542 : PACKET; // 3 (1 - beta) / (1 + beta)

    c->window_reno += (__u64)alpha * acked * PACKET / c->window_reno;
    c->window = min_of(max_of(c->window, c->window_reno), WINDOW_MAX);
}
