/* The measured loops. A transport, included before, has these functions:
 *
 * post_answer  lets the next message of a ping-pong come
 * send_one     sends a message; its buffer is free again on return
 * await_answer waits for the posted message
 * start_send, start_receive, finish   several messages at once; `finish` waits for all sends and receives
 * extra_task   tasks that only this transport has; returns 0 for others
 */

/* The task's number: the bytes of each task differ. */
static uint64_t seed;

/* What a task found: the result of rank 0, and the times of this rank. */
struct found {
	double value;
	struct times times;
};

static int extra_task(const char *task, size_t len, int rewritten, size_t window, uint64_t count, struct found *found);

/* Trips before the time counts: they open connections, map pages, and let both ranks begin together. */
enum { WARM = 2 };

/* Half round trips of one message. Rank 0 begins. The value is nanoseconds. */
static struct found ping_pong(size_t len, int rewritten, uint64_t trips)
{
	struct times begin = {0};
	fill(outgoing, len, seed);
	if (rank == 1)
		post_answer(incoming, len);
	for (uint64_t trip = 0; trip < trips + WARM; trip++) {
		if (trip == WARM)
			begin = times_now();
		if (rank == 0) {
			post_answer(incoming, len);
			if (rewritten)
				rewrite(outgoing, len);
			send_one(outgoing, len);
			await_answer(incoming, len);
		} else {
			await_answer(incoming, len);
			if (trip + 1 < trips + WARM)
				post_answer(incoming, len);
			if (rewritten)
				rewrite(outgoing, len);
			send_one(outgoing, len);
		}
	}
	struct times took = since(begin);
	check(incoming, len, seed, rewritten ? trips + WARM : 0);
	return (struct found){(double)took.wall / (2.0 * (double)trips), took};
}

/* The place of a message in a window. Buffers that stay as they are have one place for all, as in osu_bw. */
static unsigned char *place(unsigned char *buffer, size_t len, int rewritten, size_t number)
{
	return rewritten ? buffer + number * len : buffer;
}

/* Windows of messages from rank 0 to rank 1, which answers each window. The value is nanoseconds for a message. */
static struct found stream(size_t len, int rewritten, size_t window, uint64_t windows)
{
	struct times begin = {0};
	if (window > WINDOW || (rewritten && window * len > ROOM))
		fail("no room for a window of %zu messages", window);
	size_t places = rewritten ? window : 1;
	for (size_t i = 0; rank == 0 && i < places; i++)
		fill(place(outgoing, len, rewritten, i), len, seed + i);
	for (uint64_t number = 0; number < windows + WARM; number++) {
		if (number == WARM)
			begin = times_now();
		for (size_t i = 0; i < window; i++) {
			if (rank == 1) {
				start_receive(i, place(incoming, len, rewritten, i), len);
				continue;
			}
			if (rewritten)
				rewrite(place(outgoing, len, rewritten, i), len);
			start_send(i, place(outgoing, len, rewritten, i), len);
		}
		finish();
		if (rank == 0) {
			post_answer(incoming, 8);
			await_answer(incoming, 8);
		} else {
			send_one(outgoing, 8);
		}
	}
	struct times took = since(begin);
	for (size_t i = 0; rank == 1 && i < places; i++)
		check(place(incoming, len, rewritten, i), len, seed + i, rewritten ? windows + WARM : 0);
	return (struct found){(double)took.wall / (double)(windows * window), took};
}

/* Work of the CPU that touches no memory. */
static uint64_t compute(uint64_t steps)
{
	uint64_t state = steps | 1;
	for (uint64_t i = 0; i < steps; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		__asm__ volatile("" : "+r"(state));
	}
	return state;
}

static void exchange(size_t len, uint64_t steps)
{
	start_receive(0, incoming, len);
	start_send(0, outgoing, len);
	compute(steps);
	finish();
}

static double exchanges_ns(size_t len, uint64_t steps, uint64_t count)
{
	uint64_t begin = now_ns();
	for (uint64_t i = 0; i < count; i++)
		exchange(len, steps);
	return (double)(now_ns() - begin) / (double)count;
}

/* An exchange in both directions while both ranks compute for twice its time. The value is the part of the exchange
 * that costs no time, in per cent. */
static struct found overlap(size_t len, uint64_t count)
{
	enum { STEPS = 100000 };
	fill(outgoing, len, seed);
	exchanges_ns(len, 0, WARM);
	struct times begin = times_now();
	double alone = exchanges_ns(len, 0, count);
	/* Both ranks compute for the same time. */
	post_answer(incoming, sizeof(alone));
	send_one((unsigned char *)&alone, sizeof(alone));
	await_answer(incoming, sizeof(alone));
	double theirs;
	memcpy(&theirs, incoming, sizeof(theirs));
	double longest = alone > theirs ? alone : theirs;
	uint64_t start = now_ns();
	compute(STEPS);
	double step_ns = (double)(now_ns() - start) / STEPS;
	uint64_t steps = (uint64_t)(2.0 * longest / step_ns);
	start = now_ns();
	for (uint64_t i = 0; i < count; i++)
		compute(steps);
	double computing = (double)(now_ns() - start) / (double)count;
	exchange(len, 0);
	double both = exchanges_ns(len, steps, count);
	struct times took = since(begin);
	check(incoming, len, seed, 0);
	return (struct found){100.0 * (alone + computing - both) / alone, took};
}

/* Works on the tasks of the bench until it closes the connection. */
static void obey(void)
{
	char line[200], task[32];
	while (next_line(line, sizeof(line))) {
		unsigned long long len = 0, rewritten = 0, window = 0, count = 0;
		int words = sscanf(line, "%31s %llu %llu %llu %llu", task, &len, &rewritten, &window, &count);
		if (words != 5 || len == 0 || len % 8 || len > ROOM || count == 0)
			fail("not a task: %s", line);
		struct found found;
		seed++;
		alarm(LONGEST);
		if (strcmp(task, "pingpong") == 0)
			found = ping_pong(len, rewritten != 0, count);
		else if (strcmp(task, "stream") == 0)
			found = stream(len, rewritten != 0, window, count);
		else if (strcmp(task, "overlap") == 0)
			found = overlap(len, count);
		else if (!extra_task(task, len, rewritten != 0, window, count, &found))
			fail("not a task: %s", line);
		alarm(0);
		dprintf(fileno(bench), "done %.3f %llu %llu %llu\n", found.value, (unsigned long long)found.times.wall,
			(unsigned long long)found.times.thread, (unsigned long long)found.times.process);
	}
}
