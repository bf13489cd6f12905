/* Reserves and releases over many connections in closed loops, and prints what that took.
 *
 * usage: loadgen PROTOCOL SOCKET CLIENTS SECONDS HOLD GREETING RESERVE RELEASE [STATE]
 *
 * GREETING, RESERVE and RELEASE are files with the bytes to send, made by the caller. Each run of
 * 32 '@' in them is an id: ours in a reserve; in a release that of the oldest reservation held,
 * which is ours too, but for http, where the service answers with an id of its own.
 * A client keeps HOLD reservations before it begins to release. With SECONDS of 0 it stops there.
 * STATE is written at the end, also if the service has died: `held ID` is acknowledged and not
 * released, `asked ID` and `leaving ID` are requests without an answer.
 *
 * What is printed is JSON; latencies are of a reserve, from send to answer, in microseconds.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ID = 32, MOST_IDS = 256, INPUT_BYTES = 1 << 18, HEAD_BYTES = 9, REVISION = 10, COUNT = 20 };

typedef struct {
    char *bytes;
    size_t size;
    char *ids[MOST_IDS];
    int id_count;
    char *revision, *count; /* etcd: where a guard's own numbers go, or null */
} Message;

typedef struct {
    int fd;
    bool releasing, failed;
    int awaited;             /* answers that are still to come */
    int seen_ids;            /* http: ids found in this answer */
    uint64_t sent_ns;
    Message message[2];      /* reserve and release, with this client's ids filled in */
    char (*held)[ID];        /* a ring of groups; a group is what one message reserves */
    long first, groups;
    unsigned serial;
    char *input;
    size_t input_size;
    uint32_t stream;         /* etcd: the number of the last stream */
    uint64_t revision;       /* etcd: of the counter, as far as this client knows */
    long count;
    bool accepted;           /* etcd: the transaction's guard held */
} Client;

static long hold, errors, retries, operations;
static char first_error[256];
static unsigned long histogram[64 * 64];

static void die(const char *what) {
    perror(what);
    exit(2);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* The histogram: exact below 128 ns, then 64 steps for each power of two. */

static void note_latency(uint64_t ns) {
    int shift = ns < 128 ? 0 : 63 - __builtin_clzll(ns) - 6;
    histogram[shift * 64 + (ns >> shift)]++;
}

static double latency_us(double part) {
    unsigned long total = 0, below = 0;
    size_t last = 0;
    for (size_t i = 0; i < sizeof histogram / sizeof *histogram; i++) total += histogram[i];
    for (size_t i = 0; i < sizeof histogram / sizeof *histogram; i++) {
        if (!histogram[i]) continue;
        last = i;
        below += histogram[i];
        if (part < 1 && below > part * total) break;
    }
    int shift = last < 128 ? 0 : last / 64 - 1;
    return ((uint64_t)(last - shift * 64) << shift) / 1e3;
}

static void note_error(const char *text, size_t size) {
    int shown = size < 200 ? size : 200;
    if (!errors++) snprintf(first_error, sizeof first_error, "%.*s", shown, text);
}

/* Messages. */

static Message read_message(const char *path) {
    Message made = {.bytes = malloc(1 << 20)};
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    made.size = fread(made.bytes, 1, 1 << 20, file);
    fclose(file);
    return made;
}

static Message copy_message(const Message *from) {
    static const char mark[] = "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@";
    Message made = {.bytes = malloc(from->size), .size = from->size};
    char *end = memcpy(made.bytes, from->bytes, from->size) + from->size;
    for (char *at = made.bytes; (at = memmem(at, end - at, mark, ID)); at += ID)
        made.ids[made.id_count++] = at;
    made.revision = memmem(made.bytes, made.size, "##########", REVISION);
    made.count = memmem(made.bytes, made.size, "====================", COUNT);
    return made;
}

static void send_all(Client *c, const char *bytes, size_t size) {
    while (size) {
        ssize_t sent = write(c->fd, bytes, size);
        if (sent <= 0) return; /* it has gone: the next read says so */
        bytes += sent;
        size -= sent;
    }
}

static uint32_t big_endian(const char *at, int bytes) {
    uint32_t number = 0;
    while (bytes--) number = number << 8 | (uint8_t)*at++;
    return number;
}

static void put_big_endian(char *at, uint32_t number) {
    for (int i = 3; i >= 0; i--, number >>= 8) at[i] = number;
}

/* Protocols: each takes one unit from the input and returns its size, 0 while it is incomplete. */

static size_t take_http(Client *c, char *in, size_t size) {
    char *head_end = memmem(in, size, "\r\n\r\n", 4);
    if (!head_end) return 0;
    char *length = memmem(in, head_end - in, "content-length:", 15);
    size_t whole = head_end + 4 - in + (length ? strtoul(length + 15, 0, 10) : 0);
    if (whole > size) return 0;
    if (memcmp(in + 9, c->releasing ? "200" : "20", c->releasing ? 3 : 2)) {
        c->failed = true;
        note_error(in, whole);
    } else if (!c->releasing) {
        static const char mark[] = "\"reservation\":{\"id\":\"";
        int wanted = c->message[0].id_count;
        char (*group)[ID] = c->held + (c->first + c->groups) % (hold + 1) * wanted;
        char *at = head_end;
        for (int i = 0; i < wanted; i++) {
            if (!(at = memmem(at, in + whole - at, mark, sizeof mark - 1))) break;
            memcpy(group[i], at += sizeof mark - 1, ID);
        }
    }
    c->awaited--;
    return whole;
}

static size_t take_resp(Client *c, char *in, size_t size) {
    char *end = memchr(in, '\n', size);
    if (!end) return 0;
    if (memcmp(in, ":1", 2)) {
        c->failed = true;
        note_error(in, end - in);
    }
    c->awaited--;
    return end + 1 - in;
}

static size_t take_pg(Client *c, char *in, size_t size) {
    if (size < 5 || size < 1 + big_endian(in + 1, 4)) return 0;
    size_t whole = 1 + big_endian(in + 1, 4);
    if (*in == 'E' || (*in == 'D' && in[whole - 1] != 't')) {
        c->failed = true;
        note_error(in, whole);
    }
    if (*in == 'Z') c->awaited--;
    return whole;
}

/* Find a field of a protobuf message: where its content begins, its number or size in *value. */
static char *field(char *at, char *end, unsigned wanted, uint64_t *value) {
    while (at && at < end) {
        uint64_t numbers[2] = {0, 0};
        for (int n = 0; n < 2; n++)
            for (int shift = 0; at < end; shift += 7) {
                numbers[n] |= (uint64_t)(*at & 127) << shift;
                if (!(*at++ & 128)) break;
            }
        bool is_text = (numbers[0] & 7) == 2;
        if (numbers[0] >> 3 == wanted) {
            *value = numbers[1];
            return at;
        }
        if (is_text) at += numbers[1];
    }
    return 0;
}

static char *nested(char **end, char *at, unsigned wanted) {
    uint64_t size = 0;
    at = at ? field(at, *end, wanted, &size) : 0;
    if (at) *end = at + size;
    return at;
}

/* Read a TxnResponse of etcd: whether the guard held, and the counter's revision and value. */
static void read_transaction(Client *c, char *at, size_t size) {
    uint64_t value = 0;
    char *end = at + size, *inner_end = end;
    c->accepted = field(at, end, 2, &value) && value;
    char *header = nested(&inner_end, at, 1);
    if (c->accepted && header && field(header, inner_end, 3, &value)) {
        c->revision = value;
        c->count += c->releasing ? -1 : 1;
    }
    inner_end = end;
    char *pair = nested(&inner_end, nested(&inner_end, nested(&inner_end, at, 3), 1), 2);
    if (c->accepted || !pair) return;
    if (field(pair, inner_end, 3, &value)) c->revision = value;
    char *text = field(pair, inner_end, 5, &value);
    if (text) c->count = strtol(text, 0, 10);
}

static void send_message(Client *c);

/* gRPC over HTTP/2: an answer has one DATA frame, an error has none. Source: RFC 9113, section 6. */
static size_t take_etcd(Client *c, char *in, size_t size) {
    enum { DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6, GOAWAY = 7 };
    if (size < HEAD_BYTES || size < HEAD_BYTES + big_endian(in, 3)) return 0;
    size_t whole = HEAD_BYTES + big_endian(in, 3);
    int type = in[3], flags = in[4];
    if ((type == SETTINGS || type == PING) && !(flags & 1)) {
        char answer[HEAD_BYTES + 8] = {0, 0, type == PING ? 8 : 0, type, 1};
        memcpy(answer + HEAD_BYTES, in + HEAD_BYTES, type == PING ? 8 : 0);
        send_all(c, answer, HEAD_BYTES + answer[2]);
    } else if (type == DATA && whole > HEAD_BYTES + 5) {
        read_transaction(c, in + HEAD_BYTES + 5, whole - HEAD_BYTES - 5);
        c->seen_ids = 1;
    } else if (type == GOAWAY) {
        note_error("GOAWAY", 6);
    }
    if ((type == HEADERS || type == DATA) && flags & 1) {
        if (c->seen_ids && !c->accepted) {
            retries++;
            send_message(c);
        } else {
            if (!c->seen_ids) note_error("an answer without data", 22), c->failed = true;
            c->awaited--;
        }
    }
    return whole;
}

/* Number the stream in every frame, and fill in what a guard compares with and sets. */
static void fill_etcd(Client *c, Message *m) {
    char *end = m->bytes + m->size, digits[COUNT + 1];
    c->stream += 2;
    for (char *at = m->bytes; at < end; at += HEAD_BYTES + big_endian(at, 3))
        put_big_endian(at + 5, c->stream);
    if (!m->revision) return;
    for (int i = 0; i < REVISION; i++) /* a varint, padded to its longest form */
        m->revision[i] = (char)((c->revision >> (7 * i) & 127) | (i < REVISION - 1 ? 128 : 0));
    snprintf(digits, sizeof digits, "%020ld", c->count + (c->releasing ? -1 : 1));
    memcpy(m->count, digits, COUNT);
}

static const struct {
    const char *name;
    size_t (*take)(Client *, char *, size_t);
    void (*fill)(Client *, Message *);
    int greeting_answers;
    bool answer_for_each_id, ids_of_service;
} protocols[] = {
    {"http", take_http, 0, 0, false, true},
    {"resp", take_resp, 0, 0, true, false},
    {"pg", take_pg, 0, 2, false, false},
    {"etcd", take_etcd, fill_etcd, 0, false, false},
}, *protocol;

/* The loop. */

static void send_message(Client *c) {
    Message *m = &c->message[c->releasing];
    int width = c->message[0].id_count;
    if (c->releasing) {
        char (*group)[ID] = c->held + c->first * width;
        for (int i = 0; i < m->id_count; i++) memcpy(m->ids[i], group[i], ID);
    } else {
        char (*group)[ID] = c->held + (c->first + c->groups) % (hold + 1) * width;
        for (int i = 0; i < width; i++) {
            char text[ID + 1];
            snprintf(text, sizeof text, "%08x%08x%08x%08x", getpid(), c->fd, c->serial, i);
            memcpy(m->ids[i], text, ID);
            memcpy(group[i], text, ID);
        }
    }
    if (protocol->fill) protocol->fill(c, m);
    c->awaited = protocol->answer_for_each_id ? m->id_count : 1;
    c->seen_ids = 0;
    send_all(c, m->bytes, m->size);
}

static void begin(Client *c) {
    c->releasing = c->groups > hold || (hold && c->groups == hold);
    c->serial++;
    c->failed = false;
    c->sent_ns = now_ns();
    send_message(c);
}

/* Take note of an answer that has come whole; return whether the client has more to do. */
static bool answered(Client *c, uint64_t end_ns) {
    uint64_t now = now_ns();
    if (c->failed) return false;
    operations += c->message[c->releasing].id_count;
    if (c->releasing) {
        c->first = (c->first + 1) % (hold + 1);
        c->groups--;
    } else {
        note_latency(now - c->sent_ns);
        c->groups++;
    }
    if (!end_ns) return c->groups < hold;
    return now < end_ns || (!hold && c->groups);
}

static void connect_to(Client *c, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    c->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&address, sizeof address)) die(path);
}

/* Read what has come; return false when the other end has gone. */
static bool receive(Client *c) {
    ssize_t got = read(c->fd, c->input + c->input_size, INPUT_BYTES - c->input_size);
    if (got <= 0) return false;
    c->input_size += got;
    size_t used = 0, unit;
    while (used < c->input_size && (unit = protocol->take(c, c->input + used, c->input_size - used)))
        used += unit;
    memmove(c->input, c->input + used, c->input_size -= used);
    return true;
}

static void write_state(const char *path, Client *clients, int count) {
    FILE *file = fopen(path, "w");
    if (!file) die(path);
    for (Client *c = clients; c < clients + count; c++) {
        int width = c->message[0].id_count;
        for (long group = 0; group <= c->groups; group++) {
            bool asked = group == c->groups, leaving = !group && c->releasing && c->awaited;
            if (asked && (c->releasing || !c->awaited)) continue;
            for (int i = 0; i < width; i++)
                fprintf(file, "%s %.32s\n", asked ? "asked" : leaving ? "leaving" : "held",
                        c->held[(c->first + group) % (hold + 1) * width + i]);
        }
    }
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc < 9) {
        fprintf(stderr, "usage: see the head of loadgen.c\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (!strcmp(protocols[i].name, argv[1])) protocol = &protocols[i];
    int count = atoi(argv[3]), live = count, queue = epoll_create1(0);
    double seconds = atof(argv[4]);
    hold = atol(argv[5]);
    Message greeting = read_message(argv[6]);
    Message reserve = read_message(argv[7]), release = read_message(argv[8]);
    Client *clients = calloc(count, sizeof *clients);
    for (Client *c = clients; c < clients + count; c++) {
        c->message[0] = copy_message(&reserve);
        c->message[1] = copy_message(&release);
        c->held = calloc((hold + 1) * c->message[0].id_count, ID);
        c->input = malloc(INPUT_BYTES);
        c->stream = (uint32_t)-1;
        connect_to(c, argv[2]);
        c->awaited = protocol->greeting_answers;
        send_all(c, greeting.bytes, greeting.size);
        while (c->awaited)
            if (!receive(c)) die("greeting");
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(queue, EPOLL_CTL_ADD, c->fd, &event);
    }
    uint64_t start_ns = now_ns(), end_ns = seconds > 0 ? start_ns + (uint64_t)(seconds * 1e9) : 0;
    for (Client *c = clients; c < clients + count; c++) begin(c);
    while (live) {
        struct epoll_event events[256];
        int ready = epoll_wait(queue, events, 256, 60000);
        if (ready <= 0) die("no answer within a minute");
        for (int i = 0; i < ready; i++) {
            Client *c = events[i].data.ptr;
            bool open = receive(c);
            if (open && (c->awaited || (answered(c, end_ns) && (begin(c), true)))) continue;
            if (!open) note_error("the connection was closed", 25);
            epoll_ctl(queue, EPOLL_CTL_DEL, c->fd, 0);
            live--;
        }
    }
    double wall_s = (now_ns() - start_ns) / 1e9;
    if (argc > 9) write_state(argv[9], clients, count);
    printf("{\"ops_s\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,"
           "\"errors\":%ld,\"retries\":%ld}\n", operations / wall_s,
           latency_us(0.5), latency_us(0.99), latency_us(1), errors, retries);
    if (errors) fprintf(stderr, "%s\n", first_error);
    return 0;
}
