/*
 * amqpload - a small broker-neutral AMQP 0-9-1 load generator.
 *
 * One thread, epoll, non-blocking sockets, hand-made framing: no client library,
 * so that the generator takes as little as possible of the cores it shares with
 * the broker.  It prints ONE line of JSON on stdout.  Run with --help for options.
 *
 * Message body (>= 16 bytes): u64 publish time (CLOCK_MONOTONIC ns, little endian),
 * u16 publisher number, u48 sequence number, then filler.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------ utils */
static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
static void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "amqpload: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}
static inline uint16_t rd16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t rd32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t rd64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void wr16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static inline void wr32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void wr64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

/* log-bucket histogram of nanoseconds, 64 sub-buckets per power of two (<1.6 % error) */
typedef struct { uint64_t n, max; uint64_t b[60 * 64]; } hist;
static inline void hist_add(hist *h, uint64_t v) {
    unsigned i;
    if (v < 64) i = (unsigned)v;
    else {
        unsigned sh = (63u - (unsigned)__builtin_clzll(v)) - 6;
        i = (sh + 1) * 64 + (unsigned)((v >> sh) - 64);
    }
    h->b[i]++;
    h->n++;
    if (v > h->max) h->max = v;
}
static double hist_q(const hist *h, double q) { /* ms */
    if (!h->n) return -1;
    uint64_t want = (uint64_t)(q * (double)h->n), acc = 0;
    if (want >= h->n) want = h->n - 1;
    for (unsigned i = 0; i < 60 * 64; i++) {
        acc += h->b[i];
        if (acc > want) {
            if (i < 64) return i / 1e6;
            unsigned sh = i / 64 - 1;
            double lo = (double)((uint64_t)(i % 64 + 64) << sh);
            double v = lo + (double)(1ull << sh) / 2;
            return (v > (double)h->max ? (double)h->max : v) / 1e6;
        }
    }
    return (double)h->max / 1e6;
}

/* ---------------------------------------------------------------- options */
enum { M_PUBSUB, M_PUBLISH, M_CONSUME, M_IDLE };
typedef struct { char host[64]; int port; } addr;
#define MAXADDR 64
static struct {
    addr pub[MAXADDR], con[MAXADDR];
    int npub_addr, ncon_addr;
    const char *vhost, *user, *pass, *queue, *qargs, *exchange, *rkey, *label, *pids, *killpids;
    int mode, publishers, consumers, queues, channels;
    size_t size;
    uint64_t count;
    double seconds, warmup, rate, drain_timeout, interval, kill_at, hold;
    long window, prefetch, ack_every, coalesce, in_flight;
    bool single_send;
    bool durable, persistent, auto_ack, declare, purge, del, check, reconnect, stop_on_idle, passive, verbose;
} o = {.vhost = "/", .user = "guest", .pass = "guest", .queue = "bench", .qargs = "", .exchange = "",
       .mode = M_PUBSUB, .publishers = 1, .consumers = 1, .queues = 1, .channels = 1, .size = 1024,
       .seconds = 10, .drain_timeout = 20, .prefetch = 200, .ack_every = 50, .declare = true, .kill_at = -1};

static int parse_addrs(char *s, addr *out) {
    int n = 0;
    for (char *t = strtok(s, ","); t && n < MAXADDR; t = strtok(NULL, ",")) {
        char *c = strrchr(t, ':');
        if (c) { *c = 0; out[n].port = atoi(c + 1); snprintf(out[n].host, 64, "%s", t); }
        else if (isdigit((unsigned char)*t) && !strchr(t, '.')) { out[n].port = atoi(t); strcpy(out[n].host, "127.0.0.1"); }
        else { out[n].port = 5672; snprintf(out[n].host, 64, "%s", t); }
        n++;
    }
    return n;
}

/* ------------------------------------------------------------ connections */
enum { R_PUB, R_CON, R_IDLE };
enum { S_WAIT, S_CONNECTING, S_START, S_TUNE, S_OPEN, S_CHAN, S_CONFIRM, S_DECLARE, S_PURGE, S_QOS, S_CONSUME,
       S_READY, S_DELETE, S_CHCLOSE, S_CLOSE, S_DEAD };
typedef struct { uint64_t seq, ts; } pend;
typedef struct conn {
    int fd, role, state, ai, id, qi, chans_open;
    char q[256];
    bool armed, blocked, was_ready, want_close;
    uint64_t retry_at, state_since, blocked_at;
    uint8_t *in; size_t in_cap, in_s, in_e;
    uint8_t *out; size_t out_cap, out_s, out_e;
    uint32_t frame_max;
    /* publisher */
    uint8_t *tmpl; size_t tmpl_len, body_off;
    uint64_t next_seq, limit, next_tag, base_tag, outst, sent;
    pend *ring; uint8_t *done; uint64_t mask;
    uint64_t *resend; size_t nresend, iresend;
    /* consumer */
    uint64_t cur_tag, body_left, body_got, last_tag, unacked;
    bool redel, in_body;
    uint8_t head[16];
} conn;

static conn *C;
static int NC, EP;
static bool started, publishing, finishing;
static uint64_t T0, Tkill, last_conf, last_deliv, gap_conf, gap_deliv;
static uint64_t published, confirmed, nacked, returned, consumed, redelivered, disconnects, reconnects, cancels, resent;
static uint64_t gap_conf_at, gap_deliv_at, blocked_ns, blocked_count, first_disc, first_reready_pub, first_reready_con, first_conf_k, first_deliv_k;
static hist h_conf, h_e2e;
static bool measuring;
static int nready;

/* sequence checking */
#define MAXPUB 65536
typedef struct { uint8_t *seen, *conf; uint64_t cap_seen, cap_conf; int64_t max; uint64_t uniq; } track;
static track *TR;
static uint64_t arrived[MAXPUB]; /* messages of each publisher that came back, for --in-flight */
static uint64_t share;           /* --in-flight divided by the publishers */
static bool freed;               /* a delivery made room for more: publishers have to be looked at */
static uint64_t dups, reordered;
static void bit_grow(uint8_t **b, uint64_t *cap, uint64_t i) {
    if (i < *cap) return;
    uint64_t n = *cap ? *cap : 1 << 16;
    while (n <= i) n *= 2;
    *b = realloc(*b, n / 8);
    if (!*b) die("out of memory");
    memset(*b + *cap / 8, 0, (n - *cap) / 8);
    *cap = n;
}
static inline bool bit_get(const uint8_t *b, uint64_t cap, uint64_t i) { return i < cap && (b[i >> 3] >> (i & 7) & 1); }

/* --------------------------------------------------------------- output */
static void need(conn *c, size_t n) {
    if (c->out_s && c->out_s == c->out_e) c->out_s = c->out_e = 0;
    if (c->out_e + n <= c->out_cap) return;
    if (c->out_s) {
        memmove(c->out, c->out + c->out_s, c->out_e - c->out_s);
        c->out_e -= c->out_s;
        c->out_s = 0;
    }
    while (c->out_e + n > c->out_cap) {
        c->out_cap = c->out_cap ? c->out_cap * 2 : 8192;
        c->out = realloc(c->out, c->out_cap);
        if (!c->out) die("out of memory");
    }
}
static size_t f_start;
static void w8(conn *c, uint8_t v) { need(c, 1); c->out[c->out_e++] = v; }
static void w16(conn *c, uint16_t v) { need(c, 2); wr16(c->out + c->out_e, v); c->out_e += 2; }
static void w32(conn *c, uint32_t v) { need(c, 4); wr32(c->out + c->out_e, v); c->out_e += 4; }
static void w64(conn *c, uint64_t v) { need(c, 8); wr64(c->out + c->out_e, v); c->out_e += 8; }
static void wraw(conn *c, const void *p, size_t n) { need(c, n); memcpy(c->out + c->out_e, p, n); c->out_e += n; }
static void wss(conn *c, const char *s) { size_t n = strlen(s); w8(c, (uint8_t)n); wraw(c, s, n); }
static void wls(conn *c, const char *s, size_t n) { w32(c, (uint32_t)n); wraw(c, s, n); }
static void m_begin(conn *c, uint16_t ch, uint16_t cls, uint16_t mth) {
    need(c, 4096); /* setup methods are small: no compaction while a frame is open */
    w8(c, 1); w16(c, ch); f_start = c->out_e; w32(c, 0); w16(c, cls); w16(c, mth);
}
static void m_end(conn *c) {
    wr32(c->out + f_start, (uint32_t)(c->out_e - f_start - 4));
    w8(c, 0xCE);
}
static void arm(conn *c, bool w) {
    if (c->armed == w || c->fd < 0) return;
    struct epoll_event e = {.events = EPOLLIN | (w ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(EP, EPOLL_CTL_MOD, c->fd, &e);
    c->armed = w;
}
static void conn_lost(conn *c, const char *why);
static bool flush_out(conn *c) { /* true when everything went out */
    while (c->out_s < c->out_e) {
        ssize_t n = send(c->fd, c->out + c->out_s, c->out_e - c->out_s, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) { arm(c, true); return false; }
            conn_lost(c, strerror(errno));
            return false;
        }
        c->out_s += (size_t)n;
    }
    c->out_s = c->out_e = 0;
    return true;
}

/* ------------------------------------------------------------ publishing */
static void build_template(conn *c) {
    const char *rk = o.rkey ? o.rkey : c->q;
    size_t fm = c->frame_max - 8, nfr = (o.size + fm - 1) / fm;
    size_t cap = 512 + strlen(rk) + strlen(o.exchange) + o.size + nfr * 8 + 64;
    free(c->tmpl);
    c->tmpl = malloc(cap);
    uint8_t *p = c->tmpl;
    /* basic.publish */
    uint8_t *f = p;
    *p++ = 1; wr16(p, 1); p += 2; p += 4;
    wr16(p, 60); wr16(p + 2, 40); wr16(p + 4, 0); p += 6;
    *p++ = (uint8_t)strlen(o.exchange); memcpy(p, o.exchange, strlen(o.exchange)); p += strlen(o.exchange);
    *p++ = (uint8_t)strlen(rk); memcpy(p, rk, strlen(rk)); p += strlen(rk);
    *p++ = 0;
    wr32(f + 3, (uint32_t)(p - f - 7));
    *p++ = 0xCE;
    /* header: delivery-mode only */
    f = p;
    *p++ = 2; wr16(p, 1); p += 2; p += 4;
    wr16(p, 60); wr16(p + 2, 0); wr64(p + 4, o.size); wr16(p + 12, 0x1000); p += 14;
    *p++ = o.persistent ? 2 : 1;
    wr32(f + 3, (uint32_t)(p - f - 7));
    *p++ = 0xCE;
    size_t left = o.size;
    bool first = true;
    while (left) {
        size_t n = left < fm ? left : fm;
        *p++ = 3; wr16(p, 1); p += 2; wr32(p, (uint32_t)n); p += 4;
        if (first) { c->body_off = (size_t)(p - c->tmpl); first = false; }
        for (size_t i = 0; i < n; i++) p[i] = (uint8_t)('a' + i % 26);
        p += n;
        *p++ = 0xCE;
        left -= n;
    }
    c->tmpl_len = (size_t)(p - c->tmpl);
}
static void add_message(conn *c, uint64_t now) {
    uint64_t seq;
    need(c, c->tmpl_len);
    if (c->iresend < c->nresend) { seq = c->resend[c->iresend++]; resent++; }
    else { seq = c->next_seq++; published++; }
    uint8_t *p = c->out + c->out_e;
    memcpy(p, c->tmpl, c->tmpl_len);
    uint64_t idseq = (uint64_t)c->id | seq << 16;
    memcpy(p + c->body_off, &now, 8);
    memcpy(p + c->body_off + 8, &idseq, 8);
    c->out_e += c->tmpl_len;
    c->sent++;
    if (o.window) {
        c->ring[c->next_tag & c->mask] = (pend){seq, now};
        c->next_tag++;
        c->outst++;
    }
}
static inline bool can_publish(conn *c, uint64_t allowed) {
    if (c->iresend >= c->nresend) {
        if (!publishing || c->next_seq >= c->limit) return false;
    }
    if (o.window) {
        if (c->outst >= (uint64_t)o.window || c->next_tag - c->base_tag > c->mask) return false;
    }
    if (share && (int64_t)(c->sent - arrived[c->id]) >= (int64_t)share) return false;
    return c->sent < allowed;
}
/* One send() per message, as a client without batching does it. */
static void pub_single(conn *c) {
    if (c->out_s < c->out_e && !flush_out(c)) return;
    for (int n = 0; n < 256; n++) {
        if (c->blocked) { arm(c, false); return; }
        uint64_t now = now_ns(), allowed = UINT64_MAX;
        if (o.rate > 0) allowed = (uint64_t)((double)(now - T0) * 1e-9 * o.rate) + 1;
        if (!can_publish(c, allowed)) { arm(c, false); return; }
        add_message(c, now);
        if (!flush_out(c)) return;
    }
    arm(c, true); /* more to send: come back after serving the others */
}
static void pub_pump(conn *c) {
    if (c->state != S_READY) return;
    if (o.single_send) { pub_single(c); return; }
    for (int round = 0, most = o.coalesce ? 64 : 4; round < most; round++) {
        if (c->out_s < c->out_e && !flush_out(c)) return;
        if (c->blocked) { arm(c, false); return; }
        uint64_t now = now_ns(), allowed = UINT64_MAX;
        if (o.rate > 0) allowed = (uint64_t)((double)(now - T0) * 1e-9 * o.rate) + 1;
        if (!can_publish(c, allowed)) { arm(c, false); return; }
        need(c, 65536 + c->tmpl_len);
        size_t room = 65536;
        do {
            add_message(c, now);
            if (c->tmpl_len >= room) break;
            room -= c->tmpl_len;
        } while (can_publish(c, allowed));
    }
    if (c->out_s < c->out_e && !flush_out(c)) return;
    arm(c, true); /* more to send: come back after serving the others */
}
static inline void confirm_one(conn *c, uint64_t tag, uint64_t now, bool nack) {
    uint64_t i = tag & c->mask;
    if (c->done[i]) return;
    c->done[i] = 1;
    c->outst--;
    if (nack) { nacked++; return; }
    confirmed++;
    if (measuring) hist_add(&h_conf, now - c->ring[i].ts);
    if (Tkill && !first_conf_k && c->ring[i].ts > Tkill) first_conf_k = now;
    if (o.check) {
        track *t = &TR[c->id];
        bit_grow(&t->conf, &t->cap_conf, c->ring[i].seq);
        t->conf[c->ring[i].seq >> 3] |= (uint8_t)(1 << (c->ring[i].seq & 7));
    }
}
static void on_confirm(conn *c, uint64_t tag, bool multiple, bool nack, uint64_t now) {
    if (last_conf && now - last_conf > gap_conf) { gap_conf = now - last_conf; gap_conf_at = last_conf; }
    last_conf = now;
    if (multiple) {
        uint64_t hi = tag ? tag : c->next_tag - 1;
        for (uint64_t t = c->base_tag; t <= hi && t < c->next_tag; t++) confirm_one(c, t, now, nack);
    } else if (tag >= c->base_tag && tag < c->next_tag)
        confirm_one(c, tag, now, nack);
    while (c->base_tag < c->next_tag && c->done[c->base_tag & c->mask]) {
        c->done[c->base_tag & c->mask] = 0;
        c->base_tag++;
    }
}

/* -------------------------------------------------------------- consuming */
static void send_ack(conn *c, bool multiple) {
    need(c, 21);
    uint8_t *p = c->out + c->out_e;
    p[0] = 1; wr16(p + 1, 1); wr32(p + 3, 13); wr16(p + 7, 60); wr16(p + 9, 80); wr64(p + 11, c->last_tag);
    p[19] = multiple; p[20] = 0xCE;
    c->out_e += 21;
    c->unacked = 0;
}
static inline void on_message(conn *c, uint64_t now) {
    consumed++;
    if (last_deliv && now - last_deliv > gap_deliv) { gap_deliv = now - last_deliv; gap_deliv_at = last_deliv; }
    last_deliv = now;
    if (c->redel) redelivered++;
    uint64_t ts, is;
    memcpy(&ts, c->head, 8);
    memcpy(&is, c->head + 8, 8);
    if (share) { arrived[is & 0xFFFF]++; freed = true; }
    if (measuring && now > ts) hist_add(&h_e2e, now - ts);
    if (Tkill && !first_deliv_k && ts > Tkill) first_deliv_k = now;
    if (o.check) {
        track *t = &TR[is & 0xFFFF];
        uint64_t seq = is >> 16;
        if (seq < (1ull << 34)) {
            bit_grow(&t->seen, &t->cap_seen, seq);
            uint8_t m = (uint8_t)(1 << (seq & 7));
            if (t->seen[seq >> 3] & m) dups++;
            else {
                t->seen[seq >> 3] |= m;
                t->uniq++;
                if ((int64_t)seq < t->max && !c->redel) reordered++;
            }
            if ((int64_t)seq > t->max) t->max = (int64_t)seq;
        }
    }
    c->last_tag = c->cur_tag;
    if (!o.auto_ack) {
        c->unacked++;
        if (o.ack_every > 0 && c->unacked >= (uint64_t)o.ack_every) send_ack(c, o.ack_every > 1);
    }
}

/* -------------------------------------------------------- setup sequence */
static void set_state(conn *c, int s) { c->state = s; c->state_since = now_ns(); }
static void conn_start(conn *c) {
    addr *a = c->role == R_CON ? &o.con[c->ai % o.ncon_addr] : &o.pub[c->ai % o.npub_addr];
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)a->port)};
    if (inet_pton(AF_INET, a->host, &sa.sin_addr) != 1) {
        struct hostent *he = gethostbyname(a->host);
        if (!he) die("cannot resolve %s", a->host);
        memcpy(&sa.sin_addr, he->h_addr, 4);
    }
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) die("socket: %s", strerror(errno));
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->in_s = c->in_e = c->out_s = c->out_e = 0;
    c->chans_open = 0;
    c->blocked = false;
    c->in_body = false;
    c->unacked = 0;
    c->next_tag = c->base_tag = 1;
    c->outst = 0;
    if (c->done) memset(c->done, 0, c->mask + 1);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    epoll_ctl(EP, EPOLL_CTL_ADD, c->fd, &e);
    c->armed = true;
    set_state(c, S_CONNECTING);
    if (connect(c->fd, (struct sockaddr *)&sa, sizeof sa) < 0 && errno != EINPROGRESS) conn_lost(c, strerror(errno));
}
static void conn_lost(conn *c, const char *why) {
    if (c->fd < 0) return;
    if (o.verbose || (!o.reconnect && !finishing))
        fprintf(stderr, "amqpload: connection %d (role %d) lost in state %d at %.3f s: %s\n", (int)(c - C), c->role, c->state,
                started ? (double)(now_ns() - T0) / 1e9 : -1.0, why);
    close(c->fd);
    c->fd = -1;
    if (c->state == S_READY) {
        nready--;
        disconnects++;
        if (started && !first_disc && !finishing) first_disc = now_ns();
    }
    if (c->blocked) { blocked_ns += now_ns() - c->blocked_at; c->blocked = false; }
    if (finishing) { set_state(c, S_DEAD); return; }
    if (!o.reconnect) die("connection failed and --reconnect not given");
    if (c->role == R_PUB && o.window) { /* what was not confirmed is published again, same sequence numbers */
        size_t rest = c->nresend - c->iresend, n = 0;
        uint64_t *r = malloc((rest + (c->next_tag - c->base_tag) + 1) * 8);
        for (uint64_t t = c->base_tag; t < c->next_tag; t++)
            if (!c->done[t & c->mask]) r[n++] = c->ring[t & c->mask].seq;
        for (size_t i = c->iresend; i < c->nresend; i++) r[n++] = c->resend[i];
        free(c->resend);
        c->resend = r;
        c->nresend = n;
        c->iresend = 0;
    }
    c->base_tag = c->next_tag = 1;
    c->ai++;
    set_state(c, S_WAIT);
    c->retry_at = now_ns() + (c->was_ready ? 0 : 10000000ull);
    c->was_ready = false;
}
static void ready(conn *c) {
    set_state(c, S_READY);
    nready++;
    c->was_ready = true;
    if (started) {
        reconnects++;
        if (c->role == R_PUB && !first_reready_pub) first_reready_pub = now_ns();
        if (c->role == R_CON && !first_reready_con) first_reready_con = now_ns();
    }
    if (c->role == R_PUB) { build_template(c); if (started) pub_pump(c); }
}
static void send_declare(conn *c) {
    m_begin(c, 1, 50, 10);
    w16(c, 0); wss(c, c->q); w8(c, (uint8_t)((o.durable ? 2 : 0) | (o.passive ? 1 : 0)));
    size_t at = c->out_e;
    w32(c, 0);
    char buf[1024];
    snprintf(buf, sizeof buf, "%s", o.qargs);
    for (char *sv, *t = strtok_r(buf, ",", &sv); t; t = strtok_r(NULL, ",", &sv)) {
        char *eq = strchr(t, '=');
        if (!eq) die("bad --queue-args");
        *eq++ = 0;
        wss(c, t);
        char *end;
        long long v = strtoll(eq, &end, 10);
        if (!strcmp(eq, "true") || !strcmp(eq, "false")) { w8(c, 't'); w8(c, *eq == 't'); }
        else if (*eq && !*end) { if (v >= INT32_MIN && v <= INT32_MAX) { w8(c, 'I'); w32(c, (uint32_t)v); } else { w8(c, 'l'); w64(c, (uint64_t)v); } }
        else { w8(c, 'S'); wls(c, eq, strlen(eq)); }
    }
    wr32(c->out + at, (uint32_t)(c->out_e - at - 4));
    m_end(c);
}
/* send the next step of the setup after `c->state` has been answered */
static void advance(conn *c) {
    switch (c->state) {
    case S_CHAN:
        if (c->role == R_IDLE) { ready(c); break; }
        if (c->role == R_PUB && o.window) { m_begin(c, 1, 85, 10); w8(c, 0); m_end(c); set_state(c, S_CONFIRM); break; }
        /* fall through */
    case S_CONFIRM:
        if (o.declare) { send_declare(c); set_state(c, S_DECLARE); break; }
        /* fall through */
    case S_DECLARE:
        if (o.purge && !started) { m_begin(c, 1, 50, 30); w16(c, 0); wss(c, c->q); w8(c, 0); m_end(c); set_state(c, S_PURGE); break; }
        /* fall through */
    case S_PURGE:
        if (c->role == R_CON && !o.auto_ack) { m_begin(c, 1, 60, 10); w32(c, 0); w16(c, (uint16_t)o.prefetch); w8(c, 0); m_end(c); set_state(c, S_QOS); break; }
        /* fall through */
    case S_QOS:
        if (c->role == R_CON) {
            m_begin(c, 1, 60, 20); w16(c, 0); wss(c, c->q); wss(c, ""); w8(c, o.auto_ack ? 2 : 0); w32(c, 0); m_end(c);
            set_state(c, S_CONSUME);
            break;
        }
        /* fall through */
    case S_CONSUME: ready(c); break;
    }
    if (c->fd >= 0 && c->state != S_READY) flush_out(c);
}
static void begin_close(conn *c) {
    if (c->fd < 0) { c->state = S_DEAD; return; }
    if (c->state != S_READY) { close(c->fd); c->fd = -1; c->state = S_DEAD; return; }
    nready--;
    if (c->unacked) send_ack(c, true);
    if (o.del && c->role != R_IDLE && (c->role == R_CON || o.mode == M_PUBLISH) && c->id < o.queues) {
        m_begin(c, 1, 50, 40); w16(c, 0); wss(c, c->q); w8(c, 0); m_end(c);
        set_state(c, S_DELETE);
    } else {
        m_begin(c, 1, 20, 40); w16(c, 200); wss(c, "bye"); w16(c, 0); w16(c, 0); m_end(c);
        set_state(c, S_CHCLOSE);
    }
    flush_out(c);
}
static void on_method(conn *c, uint16_t ch, const uint8_t *p, uint32_t n, uint64_t now) {
    uint32_t k = rd32(p);
    (void)ch;
    switch (k) {
    case 60u << 16 | 60: { /* basic.deliver */
        const uint8_t *q = p + 4;
        q += 1 + *q;
        c->cur_tag = rd64(q);
        c->redel = q[8] & 1;
        break;
    }
    case 60u << 16 | 80: on_confirm(c, rd64(p + 4), p[12] & 1, false, now); break;
    case 60u << 16 | 120: on_confirm(c, rd64(p + 4), p[12] & 1, true, now); break;
    case 60u << 16 | 50: returned++; break;
    case 10u << 16 | 10: { /* start */
        char resp[300];
        int rn = snprintf(resp, sizeof resp, "%c%s%c%s", 0, o.user, 0, o.pass);
        m_begin(c, 0, 10, 11);
        size_t at = c->out_e;
        w32(c, 0);
        wss(c, "product"); w8(c, 'S'); wls(c, "amqpload", 8);
        wss(c, "capabilities"); w8(c, 'F');
        size_t at2 = c->out_e;
        w32(c, 0);
        const char *caps[] = {"publisher_confirms", "consumer_cancel_notify", "basic.nack", "connection.blocked", "authentication_failure_close"};
        for (int i = 0; i < 5; i++) { wss(c, caps[i]); w8(c, 't'); w8(c, 1); }
        wr32(c->out + at2, (uint32_t)(c->out_e - at2 - 4));
        wr32(c->out + at, (uint32_t)(c->out_e - at - 4));
        wss(c, "PLAIN"); wls(c, resp, (size_t)rn); wss(c, "en_US");
        m_end(c);
        set_state(c, S_TUNE);
        flush_out(c);
        break;
    }
    case 10u << 16 | 30: { /* tune */
        uint16_t cm = rd16(p + 4);
        uint32_t fm = rd32(p + 6);
        if (!fm || fm > 131072) fm = 131072;
        c->frame_max = fm;
        m_begin(c, 0, 10, 31); w16(c, cm); w32(c, fm); w16(c, 0); m_end(c);
        m_begin(c, 0, 10, 40); wss(c, o.vhost); wss(c, ""); w8(c, 0); m_end(c);
        set_state(c, S_OPEN);
        flush_out(c);
        break;
    }
    case 10u << 16 | 41: { /* open-ok */
        int nch = c->role == R_IDLE ? o.channels : 1;
        set_state(c, S_CHAN);
        if (!nch) { advance(c); break; }
        for (int i = 1; i <= nch; i++) { m_begin(c, (uint16_t)i, 20, 10); wss(c, ""); m_end(c); }
        flush_out(c);
        break;
    }
    case 20u << 16 | 11: if (++c->chans_open >= (c->role == R_IDLE ? o.channels : 1)) advance(c); break;
    case 85u << 16 | 11: case 50u << 16 | 11: case 50u << 16 | 31: case 60u << 16 | 11: case 60u << 16 | 21: advance(c); break;
    case 50u << 16 | 41:
        m_begin(c, 1, 20, 40); w16(c, 200); wss(c, "bye"); w16(c, 0); w16(c, 0); m_end(c);
        set_state(c, S_CHCLOSE);
        flush_out(c);
        break;
    case 20u << 16 | 41:
        m_begin(c, 0, 10, 50); w16(c, 200); wss(c, "bye"); w16(c, 0); w16(c, 0); m_end(c);
        set_state(c, S_CLOSE);
        flush_out(c);
        break;
    case 10u << 16 | 51: conn_lost(c, "closed"); break;
    case 10u << 16 | 60: if (!c->blocked) { c->blocked = true; c->blocked_at = now; blocked_count++; } break;
    case 10u << 16 | 61: if (c->blocked) { c->blocked = false; blocked_ns += now - c->blocked_at; } if (started && c->role == R_PUB) pub_pump(c); break;
    case 20u << 16 | 20: m_begin(c, ch, 20, 21); w8(c, p[4]); m_end(c); flush_out(c); break;
    case 60u << 16 | 30: if (finishing) break; cancels++; conn_lost(c, "consumer cancelled by broker"); break; /* basic.cancel */
    case 20u << 16 | 40: case 10u << 16 | 50: {
        char why[300];
        snprintf(why, sizeof why, "%u %.*s", rd16(p + 4), (int)p[6], (const char *)p + 7);
        conn_lost(c, why);
        break;
    }
    default: if (o.verbose) fprintf(stderr, "amqpload: ignored method %u.%u (%u bytes)\n", k >> 16, k & 0xFFFF, n);
    }
}
static bool read_some(conn *c) { /* true when there may be more to read at once */
    if (!c->in) { c->in_cap = c->role == R_IDLE ? 4096 : 262144; c->in = malloc(c->in_cap); }
    if (c->in_s == c->in_e) c->in_s = c->in_e = 0;
    else if (c->in_cap - c->in_e < c->in_cap / 4) {
        memmove(c->in, c->in + c->in_s, c->in_e - c->in_s);
        c->in_e -= c->in_s;
        c->in_s = 0;
        if (c->in_cap - c->in_e < c->in_cap / 4) { c->in_cap *= 2; c->in = realloc(c->in, c->in_cap); }
    }
    size_t room = c->in_cap - c->in_e;
    ssize_t r = recv(c->fd, c->in + c->in_e, room, 0);
    if (r <= 0) {
        if (r < 0 && errno == EAGAIN) return false;
        conn_lost(c, r ? strerror(errno) : "closed by peer");
        return false;
    }
    c->in_e += (size_t)r;
    uint64_t now = now_ns();
    while (c->in_e - c->in_s >= 7) {
        const uint8_t *p = c->in + c->in_s;
        if (p[0] == 'A') { conn_lost(c, "protocol header refused"); return false; }
        uint32_t n = rd32(p + 3);
        if (c->in_e - c->in_s < (size_t)n + 8) break;
        if (p[n + 7] != 0xCE) die("bad frame end from broker");
        c->in_s += n + 8;
        switch (p[0]) {
        case 1: on_method(c, rd16(p + 1), p + 7, n, now); if (c->fd < 0) return false; break;
        case 2:
            c->body_left = rd64(p + 11);
            c->body_got = 0;
            if (!c->body_left && c->role == R_CON) on_message(c, now);
            break;
        case 3:
            if (c->body_got < 16) {
                size_t k = 16 - c->body_got < n ? 16 - c->body_got : n;
                memcpy(c->head + c->body_got, p + 7, k);
            }
            c->body_got += n;
            if (c->body_got >= c->body_left && c->role == R_CON) on_message(c, now);
            break;
        }
    }
    if (c->role == R_CON && !o.auto_ack && o.ack_every <= 0 && c->unacked) send_ack(c, true);
    if (c->role == R_PUB && started && c->state == S_READY) pub_pump(c);
    else if (c->out_s < c->out_e) flush_out(c);
    return c->fd >= 0 && (size_t)r == room;
}
static void on_readable(conn *c) {
    for (int i = 0; read_some(c) && i < 16; i++) {}
}
static void on_event(conn *c, uint32_t ev) {
    if (c->fd < 0) return;
    if (c->state == S_CONNECTING && (ev & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
        int e = 0;
        socklen_t l = sizeof e;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &l);
        if (e) { conn_lost(c, strerror(e)); return; }
        set_state(c, S_START);
        wraw(c, "AMQP\0\0\x09\x01", 8);
        arm(c, false);
        flush_out(c);
        return;
    }
    if (ev & (EPOLLIN | EPOLLERR | EPOLLHUP)) on_readable(c);
    if (c->fd >= 0 && (ev & EPOLLOUT)) {
        if (c->role == R_PUB && started && c->state == S_READY) pub_pump(c);
        else if (flush_out(c)) arm(c, false);
    }
}

/* ------------------------------------------------- cpu / memory accounting */
#define MAXPID 4096
static int root_pids[64], nroot;
static struct { int pid; double cpu; } lastcpu[MAXPID];
static int nlast;
static bool read_stat(int pid, int *ppid, double *cpu) {
    char f[64], b[2048];
    snprintf(f, sizeof f, "/proc/%d/stat", pid);
    int fd = open(f, O_RDONLY);
    if (fd < 0) return false;
    ssize_t n = read(fd, b, sizeof b - 1);
    close(fd);
    if (n <= 0) return false;
    b[n] = 0;
    char *p = strrchr(b, ')');
    unsigned long ut, st;
    if (!p || sscanf(p + 2, "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", ppid, &ut, &st) != 3) return false;
    *cpu = (double)(ut + st) / (double)sysconf(_SC_CLK_TCK);
    return true;
}
/* cpu seconds of the broker processes (and descendants) so far, including those now dead */
static double broker_cpu(double *rss_mb) {
    static int pid[MAXPID], pp[MAXPID];
    static double cpu[MAXPID];
    static bool in[MAXPID];
    int n = 0;
    *rss_mb = 0;
    if (!nroot) return 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d)) && n < MAXPID;)
        if (isdigit((unsigned char)e->d_name[0])) {
            pid[n] = atoi(e->d_name);
            if (read_stat(pid[n], &pp[n], &cpu[n])) n++;
        }
    if (d) closedir(d);
    for (int i = 0; i < n; i++) { in[i] = false; for (int j = 0; j < nroot; j++) if (pid[i] == root_pids[j]) in[i] = true; }
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < n; i++)
            if (!in[i]) for (int j = 0; j < n; j++) if (in[j] && pp[i] == pid[j]) { in[i] = more = true; break; }
    }
    for (int i = 0; i < n; i++)
        if (in[i]) {
            int k = 0;
            while (k < nlast && lastcpu[k].pid != pid[i]) k++;
            if (k == nlast && nlast < MAXPID) lastcpu[nlast++].pid = pid[i];
            lastcpu[k].cpu = cpu[i];
            char f[64];
            snprintf(f, sizeof f, "/proc/%d/statm", pid[i]);
            FILE *m = fopen(f, "r");
            long a, b;
            if (m) { if (fscanf(m, "%ld %ld", &a, &b) == 2) *rss_mb += (double)b * (double)sysconf(_SC_PAGESIZE) / 1048576.0; fclose(m); }
        }
    double t = 0;
    for (int k = 0; k < nlast; k++) t += lastcpu[k].cpu;
    return t;
}
static double client_cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void sys_cpu(double *busy, double *steal) {
    unsigned long u = 0, n = 0, s = 0, id = 0, io = 0, ir = 0, so = 0, st = 0;
    FILE *f = fopen("/proc/stat", "r");
    if (f) { if (fscanf(f, "cpu %lu %lu %lu %lu %lu %lu %lu %lu", &u, &n, &s, &id, &io, &ir, &so, &st) != 8) {} fclose(f); }
    double hz = (double)sysconf(_SC_CLK_TCK);
    *busy = (double)(u + n + s + ir + so) / hz;
    *steal = (double)st / hz;
}
typedef struct { uint64_t t, pub, conf, con; double ccpu, bcpu, rss, busy, steal; } snap;
static double rss_peak;
static snap take(void) {
    snap s = {.t = now_ns(), .pub = published, .conf = confirmed, .con = consumed, .ccpu = client_cpu()};
    s.bcpu = broker_cpu(&s.rss);
    if (s.rss > rss_peak) rss_peak = s.rss;
    sys_cpu(&s.busy, &s.steal);
    return s;
}

/* ------------------------------------------------------------------ main */
static void usage(void) {
    puts("usage: amqpload [options]           (prints one JSON line)\n"
         "  --hosts A:P,A:P..   broker addresses; connection i starts at address i modulo n, next one on reconnect\n"
         "  --pub-hosts/--con-hosts   the same for publishers or consumers only\n"
         "  --vhost V --user U --pass P\n"
         "  --mode pubsub|publish|consume|idle\n"
         "  --queue NAME --queues N   N>1: NAME.0 .. NAME.N-1, client i uses queue i modulo N\n"
         "  --queue-args k=v,k=v --durable --persistent --no-declare --passive --purge --delete\n"
         "  --exchange X --routing-key K   (default: the default exchange, queue name)\n"
         "  --publishers N --consumers N --size BYTES(>=16) --count TOTAL | --seconds S --warmup S\n"
         "  --confirm-window W (0 = no confirms) --rate MSGS_PER_S_PER_PUBLISHER\n"
         "  --single-send   one send() per message instead of 64 KiB at a time\n"
         "  --in-flight N   at most N messages published and not yet delivered, shared equally by the publishers (pubsub)\n"
         "  --prefetch N --ack-every K (multiple ack each K; 0 = once per read) --auto-ack\n"
         "  --check   count lost / duplicated / reordered messages\n"
         "  --reconnect   survive a lost connection: reconnect to the next address, publish again what was unconfirmed\n"
         "  --kill-pid P,P --kill-at S   SIGKILL these (broker) processes S seconds after start\n"
         "  --drain-timeout S   give up waiting for confirms/deliveries after S seconds of silence\n"
         "  --broker-pids P,P   account CPU and RSS of these processes and their descendants\n"
         "  --coalesce-us U   sleep U microseconds between rounds: fewer wake-ups, less client CPU, coarser latency\n"
         "  --interval S   progress lines on stderr   --label TEXT --verbose\n"
         "  idle mode: --publishers N connections with --channels C channels each, held --seconds S");
    exit(0);
}
static void parse_pids(const char *s, int *out, int *n) {
    char b[1024];
    snprintf(b, sizeof b, "%s", s);
    for (char *sv, *t = strtok_r(b, ", ", &sv); t && *n < 64; t = strtok_r(NULL, ", ", &sv)) out[(*n)++] = atoi(t);
}
/* A periodic timer instead of an epoll timeout: re-arming a timer on every wait is dear on virtual machines. */
static int TFD = -1;
static void set_timer(double ms) {
    if (TFD < 0) {
        TFD = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
        epoll_ctl(EP, EPOLL_CTL_ADD, TFD, &e);
    }
    struct timespec t = {.tv_sec = 0, .tv_nsec = (long)(ms * 1e6)};
    struct itimerspec it = {.it_interval = t, .it_value = t};
    timerfd_settime(TFD, 0, &it, NULL);
}
static void loop_once(void) {
    static struct epoll_event ev[256];
    int n = epoll_wait(EP, ev, 256, -1);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.ptr) on_event(ev[i].data.ptr, ev[i].events);
        else { uint64_t x; if (read(TFD, &x, 8) != 8) {} }
    }
    if (freed) {
        freed = false;
        for (int i = 0; i < NC; i++) if (C[i].role == R_PUB && C[i].fd >= 0) pub_pump(&C[i]);
    }
}
static uint64_t outstanding(void) {
    uint64_t t = 0;
    for (int i = 0; i < NC; i++)
        if (C[i].role == R_PUB) t += C[i].outst + (C[i].nresend - C[i].iresend);
    return t;
}
static bool out_pending(void) {
    for (int i = 0; i < NC; i++)
        if (C[i].role == R_PUB && C[i].fd >= 0 && C[i].out_s < C[i].out_e) return true;
    return false;
}
static void ticks(uint64_t now) {
    for (int i = 0; i < NC; i++) {
        conn *c = &C[i];
        if (c->state == S_WAIT && now >= c->retry_at && !finishing) conn_start(c);
        else if (c->fd >= 0 && c->state > S_WAIT && c->state < S_READY && started && now - c->state_since > 10000000000ull) conn_lost(c, "setup timed out");
        else if (c->state == S_READY && c->role == R_CON && c->unacked && now - last_deliv > 50000000ull) { send_ack(c, true); flush_out(c); }
        else if (c->state == S_READY && c->role == R_PUB && started && o.rate > 0) pub_pump(c);
    }
}
static void jq(const char *name, const hist *h) {
    if (!h->n) { printf(",\"%s\":null", name); return; }
    printf(",\"%s\":{\"p50\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f}", name, hist_q(h, .5), hist_q(h, .99), hist_q(h, .999), (double)h->max / 1e6);
}
static double ms_after_kill(uint64_t t) { return t && Tkill ? (double)(int64_t)(t - Tkill) / 1e6 : -1; }

int main(int argc, char **argv) {
    enum { O_HOSTS = 256, O_PH, O_CH, O_VH, O_USER, O_PASS, O_MODE, O_Q, O_QS, O_QA, O_DUR, O_PERS, O_NODECL, O_PASSIVE, O_PURGE, O_DEL, O_EX, O_RK,
           O_PUBS, O_CONS, O_SIZE, O_COUNT, O_SECS, O_WARM, O_WIN, O_RATE, O_PREF, O_ACK, O_AUTO, O_CHECK, O_RECON, O_KPID, O_KAT, O_DRAIN, O_BP, O_INT,
           O_LABEL, O_VERB, O_CHANS, O_COAL, O_SINGLE, O_FLIGHT, O_HELP };
    static struct option L[] = {
        {"hosts", 1, 0, O_HOSTS}, {"pub-hosts", 1, 0, O_PH}, {"con-hosts", 1, 0, O_CH}, {"vhost", 1, 0, O_VH}, {"user", 1, 0, O_USER}, {"pass", 1, 0, O_PASS},
        {"mode", 1, 0, O_MODE}, {"queue", 1, 0, O_Q}, {"queues", 1, 0, O_QS}, {"queue-args", 1, 0, O_QA}, {"durable", 0, 0, O_DUR}, {"persistent", 0, 0, O_PERS},
        {"no-declare", 0, 0, O_NODECL}, {"passive", 0, 0, O_PASSIVE}, {"purge", 0, 0, O_PURGE}, {"delete", 0, 0, O_DEL}, {"exchange", 1, 0, O_EX}, {"routing-key", 1, 0, O_RK},
        {"publishers", 1, 0, O_PUBS}, {"consumers", 1, 0, O_CONS}, {"size", 1, 0, O_SIZE}, {"count", 1, 0, O_COUNT}, {"seconds", 1, 0, O_SECS}, {"warmup", 1, 0, O_WARM},
        {"confirm-window", 1, 0, O_WIN}, {"rate", 1, 0, O_RATE}, {"prefetch", 1, 0, O_PREF}, {"ack-every", 1, 0, O_ACK}, {"auto-ack", 0, 0, O_AUTO}, {"check", 0, 0, O_CHECK},
        {"reconnect", 0, 0, O_RECON}, {"kill-pid", 1, 0, O_KPID}, {"kill-at", 1, 0, O_KAT}, {"drain-timeout", 1, 0, O_DRAIN}, {"broker-pids", 1, 0, O_BP},
        {"interval", 1, 0, O_INT}, {"label", 1, 0, O_LABEL}, {"verbose", 0, 0, O_VERB}, {"channels", 1, 0, O_CHANS}, {"coalesce-us", 1, 0, O_COAL},
        {"single-send", 0, 0, O_SINGLE}, {"in-flight", 1, 0, O_FLIGHT}, {"help", 0, 0, O_HELP}, {0, 0, 0, 0}};
    char defh[] = "127.0.0.1:5672";
    for (int k; (k = getopt_long(argc, argv, "", L, NULL)) != -1;) switch (k) {
        case O_HOSTS: { char *s = strdup(optarg); o.npub_addr = parse_addrs(s, o.pub); o.ncon_addr = o.npub_addr; memcpy(o.con, o.pub, sizeof o.pub); break; }
        case O_PH: o.npub_addr = parse_addrs(strdup(optarg), o.pub); break;
        case O_CH: o.ncon_addr = parse_addrs(strdup(optarg), o.con); break;
        case O_VH: o.vhost = optarg; break;
        case O_USER: o.user = optarg; break;
        case O_PASS: o.pass = optarg; break;
        case O_MODE: o.mode = !strcmp(optarg, "pubsub") ? M_PUBSUB : !strcmp(optarg, "publish") ? M_PUBLISH : !strcmp(optarg, "consume") ? M_CONSUME : !strcmp(optarg, "idle") ? M_IDLE : -1;
            if (o.mode < 0) die("bad --mode");
            break;
        case O_Q: o.queue = optarg; break;
        case O_QS: o.queues = atoi(optarg); break;
        case O_QA: o.qargs = optarg; break;
        case O_DUR: o.durable = true; break;
        case O_PERS: o.persistent = true; break;
        case O_NODECL: o.declare = false; break;
        case O_PASSIVE: o.passive = true; break;
        case O_PURGE: o.purge = true; break;
        case O_DEL: o.del = true; break;
        case O_EX: o.exchange = optarg; break;
        case O_RK: o.rkey = optarg; break;
        case O_PUBS: o.publishers = atoi(optarg); break;
        case O_CONS: o.consumers = atoi(optarg); break;
        case O_SIZE: o.size = (size_t)atol(optarg); break;
        case O_COUNT: o.count = strtoull(optarg, 0, 10); break;
        case O_SECS: o.seconds = atof(optarg); break;
        case O_WARM: o.warmup = atof(optarg); break;
        case O_WIN: o.window = atol(optarg); break;
        case O_RATE: o.rate = atof(optarg); break;
        case O_PREF: o.prefetch = atol(optarg); break;
        case O_ACK: o.ack_every = atol(optarg); break;
        case O_AUTO: o.auto_ack = true; break;
        case O_CHECK: o.check = true; break;
        case O_RECON: o.reconnect = true; break;
        case O_KPID: o.killpids = optarg; break;
        case O_KAT: o.kill_at = atof(optarg); break;
        case O_DRAIN: o.drain_timeout = atof(optarg); break;
        case O_BP: o.pids = optarg; break;
        case O_INT: o.interval = atof(optarg); break;
        case O_LABEL: o.label = optarg; break;
        case O_VERB: o.verbose = true; break;
        case O_CHANS: o.channels = atoi(optarg); break;
        case O_COAL: o.coalesce = atol(optarg); break;
        case O_SINGLE: o.single_send = true; break;
        case O_FLIGHT: o.in_flight = atol(optarg); break;
        case O_HELP: usage(); break;
        default: die("bad option, see --help");
        }
    if (!o.npub_addr) o.npub_addr = parse_addrs(strdup(defh), o.pub);
    if (!o.ncon_addr) o.ncon_addr = parse_addrs(strdup(defh), o.con);
    if (o.size < 16) o.size = 16;
    if (o.mode == M_PUBLISH || o.mode == M_IDLE) o.consumers = 0;
    if (o.mode == M_CONSUME) o.publishers = 0;
    if (o.in_flight && o.mode != M_PUBSUB) die("--in-flight needs --mode pubsub");
    if (o.in_flight && o.in_flight < o.publishers) die("--in-flight must be at least the number of publishers");
    if (o.in_flight) share = (uint64_t)o.in_flight / (uint64_t)o.publishers;
    if (o.pids) parse_pids(o.pids, root_pids, &nroot);
    if (o.publishers > MAXPUB) die("too many publishers");
    if (!o.auto_ack && o.prefetch && o.ack_every > o.prefetch) o.ack_every = o.prefetch;
    TR = calloc(MAXPUB, sizeof *TR);
    for (int i = 0; i < MAXPUB; i++) TR[i].max = -1;
    struct rlimit rl;
    getrlimit(RLIMIT_NOFILE, &rl);
    rl.rlim_cur = rl.rlim_max;
    setrlimit(RLIMIT_NOFILE, &rl);
    signal(SIGPIPE, SIG_IGN);
    EP = epoll_create1(0);
    NC = o.publishers + o.consumers;
    C = calloc((size_t)NC, sizeof *C);
    uint64_t ring = 16;
    while (o.window && ring < (uint64_t)o.window * 4) ring *= 2;
    for (int i = 0; i < NC; i++) {
        conn *c = &C[i];
        bool con = i >= o.publishers;
        c->fd = -1;
        c->role = o.mode == M_IDLE ? R_IDLE : con ? R_CON : R_PUB;
        c->id = con ? i - o.publishers : i;
        c->qi = c->id % o.queues;
        c->ai = c->id;
        if (o.queues > 1) snprintf(c->q, sizeof c->q, "%s.%d", o.queue, c->qi);
        else snprintf(c->q, sizeof c->q, "%s", o.queue);
        if (c->role == R_PUB) {
            c->limit = UINT64_MAX;
            if (o.count) c->limit = o.count / (uint64_t)o.publishers + ((uint64_t)c->id < o.count % (uint64_t)o.publishers);
            if (o.window) { c->ring = calloc(ring, sizeof *c->ring); c->done = calloc(ring, 1); c->mask = ring - 1; }
        }
        c->next_tag = c->base_tag = 1;
        c->state = S_DEAD; /* until started below */
    }
    /* consumers first subscribed, publishers start once everybody is ready; connect in waves of 64 */
    set_timer(5);
    snap s_open = take();
    int begun = 0;
    while (nready < NC) {
        while (begun < NC && begun - nready < 64) conn_start(&C[NC - 1 - begun++]);
        loop_once();
        uint64_t now = now_ns();
        if (now - s_open.t > 60000000000ull) die("connections not ready after 60 s (%d of %d)", nready, NC);
        ticks(now);
    }
    double setup_s = (double)(now_ns() - s_open.t) / 1e9;
    snap s0 = take(), s1 = s0, s2 = s0;
    T0 = now_ns();
    s0.t = s1.t = T0;
    bool warm = o.warmup <= 0, done_pub = o.mode == M_CONSUME || o.mode == M_IDLE, ended = false;
    measuring = warm;
    started = true;
    publishing = o.publishers > 0 && o.mode != M_IDLE;
    for (int i = 0; i < NC; i++) if (C[i].role == R_PUB) pub_pump(&C[i]);
    uint64_t next_tick = T0, next_rss = T0 + 500000000ull, next_int = T0 + (uint64_t)(o.interval * 1e9), quiet_since = T0, deadline = o.count ? UINT64_MAX : T0 + (uint64_t)(o.seconds * 1e9);
    uint64_t lp = 0, lc = 0, lr = 0, act = 0;
    bool timed_out = false;
    set_timer(o.rate > 0 || o.kill_at >= 0 ? 1 : 5);
    struct timespec nap = {.tv_sec = 0, .tv_nsec = o.coalesce * 1000};
    for (;;) {
        if (o.coalesce) nanosleep(&nap, NULL);
        loop_once();
        uint64_t now = now_ns();
        if (now >= next_tick) { ticks(now); next_tick = now + 1000000ull; }
        if (o.killpids && o.kill_at >= 0 && !Tkill && now >= T0 + (uint64_t)(o.kill_at * 1e9)) {
            int kp[64], nk = 0;
            parse_pids(o.killpids, kp, &nk);
            for (int i = 0; i < nk; i++) kill(kp[i], SIGKILL);
            Tkill = now_ns();
        }
        if (!warm && now >= T0 + (uint64_t)(o.warmup * 1e9)) { s1 = take(); warm = measuring = true; gap_conf = gap_deliv = 0; }
        if (now >= next_rss) { double r; broker_cpu(&r); if (r > rss_peak) rss_peak = r; next_rss = now + 1000000000ull; }
        if (o.interval > 0 && now >= next_int) {
            fprintf(stderr, "t=%.2f published=%lu confirmed=%lu consumed=%lu\n", (double)(now - T0) / 1e9, published - lp, confirmed - lc, consumed - lr);
            lp = published; lc = confirmed; lr = consumed;
            next_int += (uint64_t)(o.interval * 1e9);
        }
        uint64_t a = published + confirmed + consumed + nacked + resent + reconnects;
        if (a != act) { act = a; quiet_since = now; }
        if (o.mode == M_IDLE) { if (now >= deadline) break; continue; }
        if (!done_pub) {
            if (publishing) {
                bool all = o.count > 0;
                for (int i = 0; all && i < NC; i++) if (C[i].role == R_PUB && C[i].next_seq < C[i].limit) all = false;
                if (all || now >= deadline) { publishing = false; if (!o.count) { s2 = take(); ended = true; measuring = false; } }
            }
            if (!publishing && !outstanding() && !out_pending()) done_pub = true;
        }
        if (done_pub) {
            if (o.mode == M_PUBLISH) break;
            if (o.mode == M_PUBSUB && consumed - dups >= published - nacked && (!o.check || true)) {
                /* with resends, duplicates may still be on their way: linger a little */
                if (!resent || now - last_deliv > 1000000000ull) break;
            }
            if (o.mode == M_CONSUME && ((o.count && consumed >= o.count) || now >= deadline)) break;
        }
        if ((double)(now - quiet_since) / 1e9 > o.drain_timeout) { timed_out = true; break; }
        if (!o.count && now > deadline + 600000000000ull) { timed_out = true; break; }
    }
    snap s3 = take();
    measuring = false;
    finishing = true;
    for (int i = 0; i < NC; i++) begin_close(&C[i]);
    uint64_t tc = now_ns();
    for (bool open = true; open && now_ns() - tc < 10000000000ull;) {
        loop_once();
        open = false;
        for (int i = 0; i < NC; i++) if (C[i].fd >= 0) open = true;
    }
    if (o.mode == M_PUBLISH && !o.window) s3 = take(); /* channel.close-ok: the broker has read everything */
    if (!ended) s2 = s3;
    uint64_t lost = 0, unseen_unconf = 0, gaps = 0, uniq = 0;
    if (o.check)
        for (int i = 0; i < MAXPUB; i++) {
            track *t = &TR[i];
            uniq += t->uniq;
            if (t->max >= 0) gaps += (uint64_t)t->max + 1 - t->uniq;
            for (uint64_t s = 0; s < t->cap_conf; s++) if (bit_get(t->conf, t->cap_conf, s) && !bit_get(t->seen, t->cap_seen, s)) lost++;
        }
    if (o.check && o.mode == M_PUBSUB && published > uniq) unseen_unconf = published - uniq;
    double w = (double)(s2.t - s1.t) / 1e9, tw = (double)(s3.t - s0.t) / 1e9, ncpu = (double)sysconf(_SC_NPROCESSORS_ONLN);
    double bc = s2.bcpu - s1.bcpu, bt = s3.bcpu - s0.bcpu, ct = s3.ccpu - s0.ccpu;
    uint64_t total = o.mode == M_PUBLISH ? published : consumed;
    const char *mn[] = {"pubsub", "publish", "consume", "idle"};
    printf("{\"label\":\"%s\",\"mode\":\"%s\",\"publishers\":%d,\"consumers\":%d,\"queues\":%d,\"size\":%zu,\"durable\":%s,\"persistent\":%s,\"confirm_window\":%ld,"
           "\"prefetch\":%ld,\"ack_every\":%ld,\"auto_ack\":%s,\"coalesce_us\":%ld,\"single_send\":%s,\"in_flight\":%ld",
           o.label ? o.label : "", mn[o.mode], o.mode == M_IDLE ? 0 : o.publishers, o.consumers, o.queues, o.size, o.durable ? "true" : "false", o.persistent ? "true" : "false", o.window,
           o.auto_ack ? 0 : o.prefetch, o.auto_ack ? 0 : o.ack_every, o.auto_ack ? "true" : "false", o.coalesce, o.single_send ? "true" : "false", o.in_flight);
    printf(",\"setup_s\":%.3f,\"window_s\":%.3f,\"published_per_s\":%.0f,\"confirmed_per_s\":%.0f,\"consumed_per_s\":%.0f", setup_s, w,
           (double)(s2.pub - s1.pub) / w, (double)(s2.conf - s1.conf) / w, (double)(s2.con - s1.con) / w);
    printf(",\"published\":%lu,\"confirmed\":%lu,\"nacked\":%lu,\"returned\":%lu,\"consumed\":%lu,\"wall_s\":%.3f,\"total_per_s\":%.0f", published, confirmed, nacked, returned, consumed, tw, (double)total / tw);
    jq("confirm_ms", &h_conf);
    jq("e2e_ms", &h_e2e);
    printf(",\"max_confirm_gap_ms\":%.1f,\"max_delivery_gap_ms\":%.1f", (double)gap_conf / 1e6, (double)gap_deliv / 1e6);
    printf(",\"client_cpu_s\":%.3f,\"client_cpu_share\":%.3f,\"client_ns_per_msg\":%.0f", ct, ct / tw, total ? ct * 1e9 / (double)total : 0);
    printf(",\"broker_cpu_s\":%.2f,\"broker_cpu_share\":%.3f,\"total_broker_cpu_s\":%.2f,\"msgs_per_broker_cpu_s\":%.0f,\"broker_rss_mb\":%.1f,\"broker_rss_peak_mb\":%.1f", bc, bc / w, bt,
           bt > 0 ? (double)total / bt : 0, s3.rss, rss_peak);
    printf(",\"other_cpu_share\":%.3f,\"steal_share\":%.3f", nroot ? ((s2.busy - s1.busy) - bc - (s2.ccpu - s1.ccpu)) / w / ncpu : -1, (s2.steal - s1.steal) / w / ncpu);
    if (o.mode == M_IDLE) printf(",\"connections\":%d,\"channels_per_connection\":%d,\"rss_before_mb\":%.1f,\"rss_after_mb\":%.1f,\"kb_per_connection\":%.1f,\"connections_per_s\":%.0f", NC, o.channels, s_open.rss, s3.rss,
                                 (s3.rss - s_open.rss) * 1024 / NC, NC / setup_s);
    if (o.check) printf(",\"check\":{\"unique\":%lu,\"lost_confirmed\":%lu,\"not_received\":%lu,\"sequence_gaps\":%lu,\"duplicates\":%lu,\"reordered\":%lu,\"redelivered_flag\":%lu}", uniq, lost, unseen_unconf, gaps, dups, reordered, redelivered);
    if (o.reconnect) printf(",\"failover\":{\"disconnects\":%lu,\"reconnects\":%lu,\"cancels\":%lu,\"resent\":%lu,\"disconnect_ms\":%.1f,\"publisher_ready_ms\":%.1f,\"consumer_ready_ms\":%.1f,"
                            "\"first_confirm_ms\":%.1f,\"first_delivery_ms\":%.1f,\"confirm_gap_starts_ms\":%.1f,\"delivery_gap_starts_ms\":%.1f}",
                            disconnects, reconnects, cancels, resent, ms_after_kill(first_disc), ms_after_kill(first_reready_pub), ms_after_kill(first_reready_con), ms_after_kill(first_conf_k),
                            ms_after_kill(first_deliv_k), ms_after_kill(gap_conf_at), ms_after_kill(gap_deliv_at));
    printf(",\"blocked_count\":%lu,\"blocked_s\":%.3f,\"timed_out\":%s}\n", blocked_count, (double)blocked_ns / 1e9, timed_out ? "true" : "false");
    return timed_out ? 2 : 0;
}
