// The model of the access domain, which is the user's own: how fast it delivers, how long packets take there
// without a queue, and how much data it may hold therefore. Losses there change nothing up to a bound.
#pragma once

#define RATE_UNIT (1u << 24)
#define ROUNDS_OF_EPOCH 8
#define NS_OF_EMPTY_EPOCH 10000000000ull
#define STANDING_ROUNDS 2
#define QUEUED_ROUNDS 10
#define DRAIN_ROUNDS 3
#define PLATEAU_ROUNDS 3
#define LOSS_MAX_PERCENT 10
#define UNKNOWN (~0u)

static __always_inline __u64 model_rate(const struct connection *c)
{
    return c->rate[0] > c->rate[1] ? c->rate[0] : c->rate[1];
}

static __always_inline __u32 model_empty_us(const struct connection *c)
{
    return min_of(c->empty_us[0], c->empty_us[1]);
}

static __always_inline __u32 model_queue_us(const struct connection *c)
{
    __u32 empty_us = model_empty_us(c);

    return c->access_us > empty_us ? c->access_us - empty_us : 0;
}

static __always_inline void forget_empty(struct connection *c, __u64 now)
{
    c->empty_us[0] = c->empty_us[1] = UNKNOWN;
    c->empty_epoch_ns = now;
}

// The rate is doubled until it does not grow, or a queue does.
static __always_inline void end_round_of_startup(struct connection *c, __u32 target_us)
{
    __u64 rate = model_rate(c);

    if (rate * 4 >= c->plateau_rate * 5)
        c->plateau_rate = rate, c->plateau = 0;
    else
        c->plateau++;
    c->startup = c->plateau < PLATEAU_ROUNDS && model_queue_us(c) <= target_us;
}

static __always_inline void end_round(struct connection *c, __u32 delivered, __u32 target_us, __u64 now)
{
    __u32 lost = c->round_lost, arrived = delivered - c->round_start;
    bool queues = !c->drain && model_queue_us(c) > target_us + target_us / 2;

    if (c->startup)
        end_round_of_startup(c, target_us);
    c->queued = queues ? c->queued + 1 : 0;
    if (c->drain) {
        c->drain--;
    } else if (++c->rounds >= ROUNDS_OF_EPOCH || c->queued > STANDING_ROUNDS) {
        // A standing queue in spite of the model says that the highest rate is no longer true.
        c->rate[1] = c->rate[0];
        c->rate[0] = 0;
        c->rounds = 0;
    }
    if (c->queued >= QUEUED_ROUNDS) {
        // Nor does that help: perhaps the path has become longer. A look at the empty path shows it.
        c->queued = 0;
        c->drain = DRAIN_ROUNDS;
        forget_empty(c, now);
    }
    if (lost > 4 && lost * 100 > (lost + arrived) * LOSS_MAX_PERCENT) {
        c->rate[0] = c->rate[0] * 7 / 10;
        c->rate[1] = c->rate[1] * 7 / 10;
        c->startup = 0;
        count(ACCESS_OVERLOADS, 1);
    }
    c->round_start = delivered;
    c->round_lost = 0;
}

// The data of the probe passed the PEP after `pep_us`, and the receiver had some that was sent at that time after
// `rtt_us`. So both saw the same queue before the PEP, and the difference is the RTT behind it.
static __always_inline void learn_access_rtt(struct connection *c, __u32 pep_us, __u32 rtt_us, __u32 target_us,
                                             __u64 now)
{
    __u32 sample = rtt_us - pep_us;

    if (rtt_us <= pep_us)
        return; // the PEP was late
    if (c->drain || model_empty_us(c) == UNKNOWN)
        c->access_us = sample;
    else // a single acknowledgement that is late does not make a queue
        c->access_us += (__s32)(min_of(sample, c->access_us + 2 * target_us) - c->access_us) >> 2;
    if (now - c->empty_epoch_ns > NS_OF_EMPTY_EPOCH) {
        c->empty_us[1] = c->empty_us[0];
        c->empty_us[0] = UNKNOWN;
        c->empty_epoch_ns = now;
    }
    c->empty_us[0] = min_of(c->empty_us[0], c->access_us);
}

static __always_inline void learn_rate(struct connection *c, const struct tcp_sock *tp, const struct rate_sample *rs,
                                       __u32 target_us, __u64 now)
{
    if (rs->delivered > 0 && rs->interval_us > 0) {
        __u64 rate = (__u64)rs->delivered * RATE_UNIT / rs->interval_us;

        if (rate > c->rate[0] && (!rs->is_app_limited || rate > model_rate(c)))
            c->rate[0] = rate;
    }
    if (rs->delivered > 0 && !before(rs->prior_delivered, c->round_delivered)) {
        c->round_delivered = tp->delivered;
        end_round(c, tp->delivered, target_us, now);
    }
}

// The most packets on the whole path: what is on the way to the PEP, and behind it what fills the empty path and a
// queue of the target.
static __always_inline __u32 access_limit(const struct connection *c, __u32 target_us)
{
    __u32 empty_us = model_empty_us(c);
    __u64 rate = model_rate(c);

    if (c->drain)
        return rate * (c->pep_rtt_us + c->access_us) / 2 / RATE_UNIT;
    if (empty_us == UNKNOWN)
        return UNKNOWN;
    __u64 packets = rate * (c->pep_rtt_us + empty_us + target_us) / RATE_UNIT;

    return c->startup ? 2 * packets + 10 : packets + 3;
}
