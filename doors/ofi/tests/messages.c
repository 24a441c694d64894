/* Calls the provider through libfabric: two endpoints of this process exchange messages. Each case prints its name.
 *
 * The first argument selects a case; without it, all run. A failed check prints its line and ends the program.
 */
#include "sides.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void all_sizes_arrive(void)
{
	open_both(0);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t len = sizes[i];
		for (int expected = 0; expected < 2; expected++) {
			void *sent = filled(len, (unsigned)i);
			unsigned char *got = calloc(1, len + 1);
			if (expected)
				CALL(fi_trecv(b.ep, got, len, NULL, PEER, 7, 0, &contexts[1]));
			CALL(fi_tsenddata(a.ep, sent, len, NULL, 1234 + i, PEER, 7, &contexts[0]));
			if (!expected) {
				settle();
				CALL(fi_trecv(b.ep, got, len, NULL, FI_ADDR_UNSPEC, 7, 0, &contexts[1]));
			}
			struct fi_cq_tagged_entry entry = succeed(&b, &contexts[1]);
			CHECK(entry.len == len && entry.tag == 7 && entry.data == 1234 + i);
			CHECK(entry.flags == (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA));
			check_filled(got, len, (unsigned)i);
			entry = succeed(&a, &contexts[0]);
			CHECK(entry.flags == (FI_SEND | FI_TAGGED));
			/* The same without tags, the other way round. */
			CALL(fi_recv(a.ep, got, len, NULL, PEER, &contexts[2]));
			memset(got, 0, len);
			CALL(fi_send(b.ep, sent, len, NULL, PEER, &contexts[3]));
			entry = succeed(&a, &contexts[2]);
			CHECK(entry.len == len && entry.flags == (FI_RECV | FI_MSG));
			check_filled(got, len, (unsigned)i);
			succeed(&b, &contexts[3]);
			free(sent);
			free(got);
		}
	}
	close_both();
}

static void segments_are_joined(void)
{
	open_both(0);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t len = sizes[i], cut = len / 3;
		char *sent = filled(len, 5), *got = calloc(1, len + 1);
		struct iovec out[3] = {{sent, cut}, {sent + cut, 0}, {sent + cut, len - cut}};
		struct iovec in[2] = {{got, len - cut}, {got + len - cut, cut}};
		CALL(fi_trecvv(b.ep, in, NULL, 2, PEER, 1, 0, &contexts[1]));
		CALL(fi_tsendv(a.ep, out, NULL, 3, PEER, 1, &contexts[0]));
		CHECK(succeed(&b, &contexts[1]).len == len);
		succeed(&a, &contexts[0]);
		check_filled((unsigned char *)got, len, 5);
		free(sent);
		free(got);
	}
	close_both();
}

static void tags_select_messages(void)
{
	open_both(0);
	int got[4] = {0}, sent[4] = {10, 11, 12, 13};
	/* An exact receive behind one for all tags and one that ignores the low byte. */
	CALL(fi_trecv(b.ep, &got[0], 4, NULL, FI_ADDR_UNSPEC, 0x100, 0xff, &contexts[0]));
	CALL(fi_trecv(b.ep, &got[1], 4, NULL, FI_ADDR_UNSPEC, 0x205, 0, &contexts[1]));
	CALL(fi_trecv(b.ep, &got[2], 4, NULL, FI_ADDR_UNSPEC, 0, ~0ull, &contexts[2]));
	CALL(fi_recv(b.ep, &got[3], 4, NULL, FI_ADDR_UNSPEC, &contexts[3]));
	CALL(fi_tsend(a.ep, &sent[0], 4, NULL, PEER, 0x205, &contexts[9]));
	CALL(fi_tsend(a.ep, &sent[1], 4, NULL, PEER, 0x205, &contexts[9]));
	CALL(fi_tsend(a.ep, &sent[2], 4, NULL, PEER, 0x1fe, &contexts[9]));
	CALL(fi_send(a.ep, &sent[3], 4, NULL, PEER, &contexts[9]));
	CHECK(succeed(&b, &contexts[1]).tag == 0x205);
	CHECK(succeed(&b, &contexts[2]).tag == 0x205);
	CHECK(succeed(&b, &contexts[0]).tag == 0x1fe);
	succeed(&b, &contexts[3]);
	CHECK(got[1] == 10 && got[2] == 11 && got[0] == 12 && got[3] == 13);
	for (int i = 0; i < 4; i++)
		succeed(&a, &contexts[9]);
	close_both();
}

static void messages_of_one_tag_match_in_order(void)
{
	open_both(0);
	/* Short, middle and long messages travel differently. */
	static const size_t lens[] = {8, 70000, 16, 9000, 8, 1000000, 0, 12000};
	for (unsigned round = 0; round < 8; round++) {
		unsigned char *sent[COUNT(lens)], *got[COUNT(lens)];
		for (size_t i = 0; i < COUNT(lens); i++) {
			sent[i] = filled(lens[i], (unsigned)i + round);
			got[i] = malloc(1000000);
			CALL(fi_tsend(a.ep, sent[i], lens[i], NULL, PEER, 3, &contexts[100 + i]));
		}
		if (round % 2)
			settle();
		for (size_t i = 0; i < COUNT(lens); i++)
			CALL(fi_trecv(b.ep, got[i], 1000000, NULL, PEER, 3, 0, &contexts[i]));
		for (size_t i = 0; i < COUNT(lens); i++) {
			struct fi_cq_tagged_entry entry;
			CHECK(take(&b, &entry) == 1);
			size_t which = (size_t)((int *)entry.op_context - contexts);
			CHECK(which < COUNT(lens) && entry.len == lens[which]);
			check_filled(got[which], lens[which], (unsigned)which + round);
			CHECK(take(&a, &entry) == 1);
		}
		for (size_t i = 0; i < COUNT(lens); i++) {
			free(sent[i]);
			free(got[i]);
		}
	}
	close_both();
}

static void probes_find_claim_and_discard(void)
{
	open_both(0);
	size_t lens[] = {16, 9000, 300000};
	for (size_t i = 0; i < COUNT(lens); i++) {
		size_t len = lens[i];
		unsigned char *sent = filled(len, 1), *got = calloc(1, len);
		struct fi_context2 claim, other;
		struct fi_msg_tagged msg = {.addr = FI_ADDR_UNSPEC, .tag = 5, .context = &claim};
		struct fi_cq_tagged_entry entry;
		CALL(fi_trecvmsg(b.ep, &msg, FI_PEEK));
		fail(&b, &claim, FI_ENOMSG);
		CALL(fi_tsenddata(a.ep, sent, len, NULL, 77, PEER, 5, &contexts[0]));
		settle();
		/* Looking changes nothing. */
		for (int twice = 0; twice < 2; twice++) {
			CALL(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_COMPLETION));
			entry = succeed(&b, &claim);
			CHECK(entry.len == len && entry.tag == 5 && entry.data == 77);
			CHECK(entry.flags & FI_REMOTE_CQ_DATA);
		}
		CALL(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM));
		CHECK(succeed(&b, &claim).len == len);
		/* Nothing else finds a claimed message. */
		msg.context = &other;
		CALL(fi_trecvmsg(b.ep, &msg, FI_PEEK));
		fail(&b, &other, FI_ENOMSG);
		struct iovec in = {got, len};
		msg.context = &claim;
		msg.msg_iov = &in;
		msg.iov_count = 1;
		CALL(fi_trecvmsg(b.ep, &msg, FI_CLAIM));
		entry = succeed(&b, &claim);
		CHECK(entry.len == len && entry.tag == 5 && entry.data == 77);
		check_filled(got, len, 1);
		succeed(&a, &contexts[0]);
		CHECK(fi_trecvmsg(b.ep, &msg, FI_CLAIM) == -FI_EINVAL);
		CHECK(fi_trecvmsg(b.ep, &msg, FI_CLAIM | FI_DISCARD) == -FI_EINVAL);
		/* A discarded message is gone; its sender has succeeded. It was claimed before, or not. */
		CALL(fi_tsenddata(a.ep, sent, len, NULL, 78, PEER, 5, &contexts[1]));
		settle();
		CALL(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM));
		succeed(&b, &claim);
		CALL(fi_trecvmsg(b.ep, &msg, FI_CLAIM | FI_DISCARD));
		entry = succeed(&b, &claim);
		CHECK(entry.tag == 5 && entry.data == 78 && (entry.flags & (FI_RECV | FI_TAGGED)) == (FI_RECV | FI_TAGGED));
		succeed(&a, &contexts[1]);
		CALL(fi_tsend(a.ep, sent, len, NULL, PEER, 5, &contexts[1]));
		settle();
		CALL(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_DISCARD));
		CHECK(succeed(&b, &claim).len == len);
		succeed(&a, &contexts[1]);
		CALL(fi_trecvmsg(b.ep, &msg, FI_PEEK));
		fail(&b, &claim, FI_ENOMSG);
		free(sent);
		free(got);
	}
	close_both();
}

static void unmatched_receives_are_canceled_once(void)
{
	open_both(0);
	char got[16], sent[16] = "still here";
	CALL(fi_trecv(b.ep, got, 16, NULL, FI_ADDR_UNSPEC, 1, 0, &contexts[0]));
	CALL(fi_trecv(b.ep, got, 16, NULL, FI_ADDR_UNSPEC, 1, 0, &contexts[1]));
	CALL(fi_cancel(&b.ep->fid, &contexts[0]));
	fail(&b, &contexts[0], FI_ECANCELED);
	CHECK(fi_cancel(&b.ep->fid, &contexts[0]) < 0);
	CALL(fi_tsend(a.ep, sent, 16, NULL, PEER, 1, &contexts[2]));
	/* A send is not canceled. */
	CHECK(fi_cancel(&a.ep->fid, &contexts[2]) < 0);
	succeed(&b, &contexts[1]);
	CHECK(strcmp(got, sent) == 0);
	CHECK(fi_cancel(&b.ep->fid, &contexts[1]) < 0);
	succeed(&a, &contexts[2]);
	close_both();
}

static void long_messages_are_truncated(void)
{
	open_both(0);
	size_t lens[] = {16, 100, 8000, 9000, 60000, 2000000};
	for (size_t i = 0; i < COUNT(lens); i++)
		for (int expected = 0; expected < 2; expected++) {
			size_t len = lens[i], room = len * 2 / 3;
			unsigned char *sent = filled(len, 9), *got = calloc(1, len);
			if (expected)
				CALL(fi_trecv(b.ep, got, room, NULL, PEER, 1, 0, &contexts[0]));
			CALL(fi_tsend(a.ep, sent, len, NULL, PEER, 1, &contexts[1]));
			if (!expected) {
				settle();
				CALL(fi_trecv(b.ep, got, room, NULL, PEER, 1, 0, &contexts[0]));
			}
			struct fi_cq_err_entry error = fail(&b, &contexts[0], FI_ETRUNC);
			CHECK(error.olen == len - room && error.len == room && error.tag == 1);
			check_filled(got, room, 9);
			for (size_t place = room; place < len; place++)
				CHECK(got[place] == 0);
			succeed(&a, &contexts[1]);
			free(sent);
			free(got);
		}
	close_both();
}

static void one_buffer_receives_many_messages(void)
{
	open_both(0);
	size_t least = 300, len = sizeof(least);
	CALL(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
	least = 0;
	CALL(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &len));
	CHECK(least == 300);
	static unsigned char buffer[1000];
	unsigned char *sent = filled(250, 3);
	struct iovec in = {buffer, sizeof(buffer)};
	struct fi_msg msg = {.msg_iov = &in, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &contexts[0]};
	CALL(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV));
	/* After the third message, 250 bytes are free. */
	for (int i = 0; i < 3; i++) {
		CALL(fi_send(a.ep, sent, 250, NULL, PEER, &contexts[1]));
		struct fi_cq_tagged_entry entry = succeed(&b, &contexts[0]);
		CHECK(entry.len == 250 && (unsigned char *)entry.buf == buffer + i * 250);
		CHECK(!!(entry.flags & FI_MULTI_RECV) == (i == 2));
		check_filled(entry.buf, 250, 3);
		succeed(&a, &contexts[1]);
	}
	free(sent);
	close_both();
}

static void an_endpoint_sends_to_itself(void)
{
	open_both(0);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t len = sizes[i];
		unsigned char *sent = filled(len, 2), *got = calloc(1, len + 1);
		CALL(fi_tsend(a.ep, sent, len, NULL, SELF, 1, &contexts[0]));
		CALL(fi_trecv(a.ep, got, len, NULL, SELF, 1, 0, &contexts[1]));
		struct fi_cq_tagged_entry entry;
		for (int count = 0; count < 2; count++)
			CHECK(take(&a, &entry) == 1);
		check_filled(got, len, 2);
		free(sent);
		free(got);
	}
	close_both();
}

static void completions_come_if_they_are_asked_for(void)
{
	open_both(SELECTIVE);
	char got[16] = "", sent[16] = "message";
	struct iovec in = {got, 16}, out = {sent, 16};
	struct fi_msg_tagged msg = {.msg_iov = &in, .iov_count = 1, .addr = PEER, .tag = 1, .context = &contexts[0]};
	struct fi_cq_tagged_entry entry;
	/* Without the flag: the message arrives, and no completion comes before that of the next one. */
	CALL(fi_trecvmsg(b.ep, &msg, 0));
	CALL(fi_tinject(a.ep, sent, 16, PEER, 1));
	settle();
	CHECK(strcmp(got, "message") == 0);
	CHECK(fi_cq_read(b.cq, &entry, 1) == -FI_EAGAIN);
	msg.context = &contexts[1];
	CALL(fi_trecvmsg(b.ep, &msg, FI_COMPLETION));
	msg.msg_iov = &out;
	msg.context = &contexts[2];
	CALL(fi_tsendmsg(a.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	succeed(&b, &contexts[1]);
	succeed(&a, &contexts[2]);
	/* A failure is reported even so. */
	msg.msg_iov = &in;
	msg.context = &contexts[3];
	CALL(fi_trecvmsg(b.ep, &msg, 0));
	CALL(fi_cancel(&b.ep->fid, &contexts[3]));
	fail(&b, &contexts[3], FI_ECANCELED);
	close_both();
}

static void a_short_queue_keeps_all_completions(void)
{
	enum { MANY = 300, SHORT = 8 };
	static unsigned char sent[MANY], got[MANY];
	struct fi_cq_tagged_entry entries[100];
	queue_size = SHORT;
	open_both(0);
	queue_size = 0;
	for (int i = 0; i < MANY; i++) {
		sent[i] = (unsigned char)i;
		CALL(fi_trecv(b.ep, &got[i], 1, NULL, PEER, (uint64_t)i, 0, &contexts[i]));
		CALL(fi_tsend(a.ep, &sent[i], 1, NULL, PEER, (uint64_t)i, &contexts[i]));
	}
	settle();
	struct side *sides[] = {&a, &b};
	for (int side = 0; side < 2; side++) {
		static char seen[MANY];
		memset(seen, 0, sizeof(seen));
		/* One at a time, and then as many as there are. */
		for (ssize_t count = 0, most = 0; count < MANY;) {
			ssize_t room = count < 10 ? 1 : 100, taken = fi_cq_read(sides[side]->cq, entries, (size_t)room);
			CHECK(taken > 0 && taken <= room);
			for (ssize_t i = 0; i < taken; i++) {
				size_t which = (size_t)((int *)entries[i].op_context - contexts);
				CHECK(which < MANY && !seen[which]++);
			}
			count += taken;
			most = taken > most ? taken : most;
			CHECK(count < MANY || most > 1);
		}
		CHECK(fi_cq_read(sides[side]->cq, entries, 1) == -FI_EAGAIN);
	}
	CHECK(memcmp(sent, got, MANY) == 0);
	close_both();
}

static void counters_count_all_operations(void)
{
	open_both(SELECTIVE | WITH_COUNTERS);
	char got[16], sent[16] = "counted";
	struct iovec in = {got, 16};
	struct fi_msg_tagged msg = {.msg_iov = &in, .iov_count = 1, .addr = PEER, .tag = 1, .context = &contexts[0]};
	for (int i = 0; i < 5; i++) {
		CALL(fi_trecvmsg(b.ep, &msg, 0));
		CALL(fi_tinject(a.ep, sent, 16, PEER, 1));
	}
	while (fi_cntr_read(b.receives) < 5)
		fi_cntr_read(a.sends);
	CALL(fi_cntr_wait(a.sends, 5, -1));
	CHECK(fi_cntr_wait(a.sends, 6, 1) == -FI_ETIMEDOUT);
	CHECK(fi_cntr_read(a.sends) == 5 && fi_cntr_readerr(b.receives) == 0);
	CALL(fi_trecvmsg(b.ep, &msg, 0));
	CALL(fi_cancel(&b.ep->fid, &contexts[0]));
	fail(&b, &contexts[0], FI_ECANCELED);
	CHECK(fi_cntr_readerr(b.receives) == 1);
	CALL(fi_cntr_set(b.receives, 0));
	CALL(fi_cntr_add(b.receives, 3));
	CHECK(fi_cntr_read(b.receives) == 3);
	close_both();
}

static void a_directed_receive_takes_messages_of_its_peer_only(void)
{
	open_both(0);
	int from_peer = 1, from_self = 2, got[2] = {0};
	fi_addr_t source;
	struct fi_cq_tagged_entry entry;
	CALL(fi_trecv(b.ep, &got[0], 4, NULL, PEER, 1, 0, &contexts[0]));
	CALL(fi_tsend(b.ep, &from_self, 4, NULL, SELF, 1, &contexts[2]));
	settle();
	CALL(fi_tsend(a.ep, &from_peer, 4, NULL, PEER, 1, &contexts[3]));
	CHECK(take(&b, &entry) == 1 && take(&b, &entry) == 1);
	CHECK(got[0] == 1);
	CALL(fi_trecv(b.ep, &got[1], 4, NULL, FI_ADDR_UNSPEC, 1, 0, &contexts[1]));
	ssize_t read;
	while ((read = fi_cq_readfrom(b.cq, &entry, 1, &source)) == -FI_EAGAIN)
		;
	CHECK(read == 1 && entry.op_context == &contexts[1] && source == SELF && got[1] == 2);
	succeed(&a, &contexts[3]);
	close_both();
}

static void sends_before_the_receives_do_not_deadlock(void)
{
	static const size_t lens[] = {8, 8192, 9000, 65536};
	for (size_t i = 0; i < COUNT(lens); i++)
		for (int n = 1; n <= 64; n *= 8) {
			size_t len = lens[i];
			open_both(0);
			unsigned char *sent = filled(len, 4), *got = malloc(len * 2 * (size_t)n);
			for (int m = 0; m < n; m++) {
				CALL(fi_tsend(a.ep, sent, len, NULL, PEER, (uint64_t)m, &contexts[0]));
				CALL(fi_tsend(b.ep, sent, len, NULL, PEER, (uint64_t)m, &contexts[0]));
			}
			settle();
			/* In the reverse order. */
			for (int m = n - 1; m >= 0; m--) {
				unsigned char *place = got + len * 2 * (size_t)m;
				CALL(fi_trecv(a.ep, place, len, NULL, PEER, (uint64_t)m, 0, &contexts[1]));
				CALL(fi_trecv(b.ep, place + len, len, NULL, PEER, (uint64_t)m, 0, &contexts[1]));
			}
			for (int m = 0; m < 2 * n; m++) {
				struct fi_cq_tagged_entry entry;
				CHECK(take(&a, &entry) == 1 && take(&b, &entry) == 1);
			}
			for (int m = 0; m < 2 * n; m++)
				check_filled(got + len * (size_t)m, len, 4);
			free(sent);
			free(got);
			close_both();
		}
}

static void thousands_of_unexpected_messages_are_kept(void)
{
	open_both(0);
	enum { MANY = 8000 };
	static int sent[MANY], got[MANY];
	for (int i = 0; i < MANY; i++) {
		sent[i] = i;
		ssize_t answer;
		while ((answer = fi_tsend(a.ep, &sent[i], 4, NULL, PEER, (uint64_t)i, &contexts[i])) == -FI_EAGAIN)
			settle();
		CALL(answer);
	}
	settle();
	for (int i = MANY - 1; i >= 0; i--)
		CALL(fi_trecv(b.ep, &got[i], 4, NULL, PEER, (uint64_t)i, 0, &contexts[i]));
	struct fi_cq_tagged_entry entry;
	for (int i = 0; i < MANY; i++)
		CHECK(take(&b, &entry) == 1 && entry.tag == (uint64_t)((int *)entry.op_context - contexts));
	for (int i = 0; i < MANY; i++) {
		CHECK(got[i] == i);
		CHECK(take(&a, &entry) == 1);
	}
	close_both();
}

static void addresses_are_checked(void)
{
	open_both(0);
	struct fi_av_attr attr = {.type = FI_AV_MAP};
	struct fid_av *unbound;
	CALL(fi_av_open(domain, &attr, &unbound, NULL));
	char other[64], text[128];
	fi_addr_t number = 5;
	memcpy(other, a.name, sizeof(other));
	/* The boot of another machine. */
	other[9] ^= 1;
	CHECK(fi_av_insert(b.av, other, 1, &number, 0, NULL) == -FI_EHOSTUNREACH);
	CHECK(number == FI_ADDR_NOTAVAIL);
	/* Also in a vector that no endpoint uses yet. */
	CHECK(fi_av_insert(unbound, other, 1, &number, 0, NULL) == -FI_EHOSTUNREACH);
	CHECK(fi_av_insert(unbound, a.name, 1, &number, 0, NULL) == 1 && number == 0);
	CALL(fi_close(&unbound->fid));
	int error = 0;
	CHECK(fi_av_insert(b.av, other, 1, &number, FI_SYNC_ERR, &error) == 0 && error == FI_EHOSTUNREACH);
	memset(other, 1, sizeof(other));
	CHECK(fi_av_insert(b.av, other, 1, &number, 0, NULL) == -FI_EINVAL);
	/* Known addresses keep their numbers. */
	CHECK(fi_av_insert(b.av, a.name, 1, &number, 0, NULL) == 1 && number == PEER);
	size_t len = sizeof(other);
	CALL(fi_av_lookup(b.av, PEER, other, &len));
	CHECK(len == a.name_len && memcmp(other, a.name, len) == 0);
	CHECK(fi_av_lookup(b.av, 99, other, &len) == -FI_EINVAL);
	len = sizeof(text);
	CHECK(fi_av_straddr(b.av, a.name, text, &len) == text && strncmp(text, "telpher://", 10) == 0);
	CHECK(len == strlen(text) + 1);
	len = 4;
	fi_av_straddr(b.av, a.name, text, &len);
	CHECK(strcmp(text, "tel") == 0);
	len = 3;
	CHECK(fi_getname(&a.ep->fid, other, &len) == -FI_ETOOSMALL && len == a.name_len);
	/* Inserted twice, removed twice. */
	number = PEER;
	CALL(fi_av_remove(b.av, &number, 1, 0));
	CALL(fi_av_lookup(b.av, PEER, other, &len));
	CALL(fi_av_remove(b.av, &number, 1, 0));
	CHECK(fi_av_remove(b.av, &number, 1, 0) == -FI_EINVAL);
	CHECK(fi_tsend(b.ep, text, 1, NULL, PEER, 0, NULL) == -FI_EINVAL);
	close_both();
}

static void bad_arguments_are_refused(void)
{
	open_both(0);
	char byte = 0, big[100];
	struct iovec in[9] = {{&byte, 1}};
	struct fi_msg_tagged msg = {.msg_iov = in, .iov_count = 9, .addr = PEER};
	struct fi_cq_tagged_entry entry;
	struct fid_ep *ep;
	CHECK(fi_tsend(a.ep, NULL, 8, NULL, PEER, 0, NULL) == -FI_EINVAL);
	CHECK(fi_tsend(a.ep, &byte, 1, NULL, 12345, 0, NULL) == -FI_EINVAL);
	CHECK(fi_trecv(a.ep, NULL, 8, NULL, PEER, 0, 0, NULL) == -FI_EINVAL);
	CHECK(fi_trecv(a.ep, &byte, 1, NULL, 12345, 0, 0, NULL) == -FI_EINVAL);
	CHECK(fi_tsendmsg(a.ep, &msg, 0) == -FI_EINVAL);
	CHECK(fi_tsendmsg(a.ep, NULL, 0) == -FI_EINVAL);
	msg.iov_count = 1;
	CHECK(fi_tsendmsg(a.ep, &msg, FI_PEEK) == -FI_EBADFLAGS);
	CHECK(fi_tsendmsg(a.ep, &msg, FI_FENCE) == -FI_EBADFLAGS);
	CHECK(fi_trecvmsg(a.ep, &msg, 1ull << 60) == -FI_EBADFLAGS);
	CHECK(fi_trecvmsg(a.ep, &msg, FI_DISCARD) == -FI_EBADFLAGS);
	/* A buffer for many messages is one buffer. */
	struct fi_msg many = {.msg_iov = in, .iov_count = 2, .addr = FI_ADDR_UNSPEC};
	in[1] = in[0];
	CHECK(fi_recvmsg(a.ep, &many, FI_MULTI_RECV) == -FI_EINVAL);
	CHECK(fi_tinject(a.ep, big, info->tx_attr->inject_size + 1, PEER, 0) == -FI_EMSGSIZE);
	CHECK(fi_cq_read(a.cq, NULL, 1) == -FI_EINVAL);
	CHECK(fi_cq_readerr(a.cq, (struct fi_cq_err_entry *)1, 0) == -FI_EINVAL);
	CHECK(fi_cq_read(a.cq, &entry, 1) == -FI_EAGAIN);
	CHECK(fi_cq_sread(a.cq, &entry, 1, NULL, 1) == -FI_EAGAIN);
	CALL(fi_cq_signal(a.cq));
	CHECK(fi_cq_sread(a.cq, &entry, 1, NULL, -1) == -FI_EAGAIN);
	CHECK(fi_enable(a.ep) == -FI_EOPBADSTATE);
	CHECK(fi_ep_bind(a.ep, &a.cq->fid, FI_SEND) == -FI_EOPBADSTATE);
	CHECK(fi_close(&a.cq->fid) == -FI_EBUSY && fi_close(&a.av->fid) == -FI_EBUSY);
	CHECK(fi_close(&domain->fid) == -FI_EBUSY && fi_close(&fabric->fid) == -FI_EBUSY);
	/* Functions get an object of another class. */
	CHECK(a.ep->msg->send((struct fid_ep *)a.cq, &byte, 1, NULL, PEER, NULL) == -FI_EINVAL);
	CHECK(a.ep->msg->send(NULL, &byte, 1, NULL, PEER, NULL) == -FI_EINVAL);
	CHECK(a.ep->rma->write(a.ep, &byte, 1, NULL, PEER, 0, 0, NULL) == -FI_ENOSYS);
	CALL(fi_endpoint(domain, info, &ep, NULL));
	CHECK(fi_enable(ep) == -FI_ENOAV);
	CALL(fi_ep_bind(ep, &a.av->fid, 0));
	CHECK(fi_enable(ep) == -FI_ENOCQ);
	CHECK(fi_tsend(ep, &byte, 1, NULL, PEER, 0, NULL) == -FI_EOPBADSTATE);
	CALL(fi_close(&ep->fid));
	struct fid_mr *mr;
	CALL(fi_mr_reg(domain, big, sizeof(big), FI_SEND | FI_RECV, 0, 42, 0, &mr, NULL));
	CHECK(fi_mr_key(mr) == 42);
	CALL(fi_close(&mr->fid));
	close_both();
}

/* A page that cannot be accessed, behind `before` bytes that can. */
static unsigned char *before_a_hole(size_t before)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), len = (before + page - 1) / page * page;
	unsigned char *at = mmap(NULL, len + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	CALL(mprotect(at + len, page, PROT_NONE));
	return at + len - before;
}

static void failed_messages_keep_the_context_of_their_buffer(void)
{
	open_both(SELECTIVE | WITH_COUNTERS);
	unsigned char *sent = before_a_hole(20000), *buffer = malloc(1 << 20);
	struct iovec in = {buffer, 1 << 20};
	struct fi_msg msg = {.msg_iov = &in, .iov_count = 1, .addr = PEER, .context = &contexts[0]};
	/* The buffer's messages are counted, but their completions are not wanted. */
	CALL(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV));
	for (int twice = 0; twice < 2; twice++) {
		CALL(fi_send(a.ep, sent, 30000, NULL, PEER, &contexts[1]));
		fail(&a, &contexts[1], FI_EFAULT);
		fail(&b, &contexts[0], FI_EIO);
	}
	CALL(fi_cancel(&b.ep->fid, &contexts[0]));
	fail(&b, &contexts[0], FI_ECANCELED);
	CHECK(fi_cntr_readerr(b.receives) == 3);
	free(buffer);
	close_both();
}

static void a_forked_child_is_told_at_once(void)
{
	open_both(WITH_COUNTERS);
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fid_eq *eq;
	CALL(fi_eq_open(fabric, &attr, &eq, NULL));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct fi_cq_tagged_entry entry;
		struct fi_cq_err_entry error;
		struct fi_eq_entry event;
		uint32_t event_number;
		fi_addr_t number = PEER;
		char byte = 0;
		CHECK(fi_cq_read(a.cq, &entry, 1) == -FI_EPERM);
		CHECK(fi_cq_sread(a.cq, &entry, 1, NULL, -1) == -FI_EPERM);
		CHECK(fi_cq_readerr(a.cq, &error, 0) == -FI_EPERM);
		CHECK(fi_tsend(a.ep, &byte, 1, NULL, PEER, 0, NULL) == -FI_EPERM);
		CHECK(fi_trecv(a.ep, &byte, 1, NULL, PEER, 0, 0, NULL) == -FI_EPERM);
		CHECK(fi_cancel(&a.ep->fid, NULL) == -FI_EPERM);
		CHECK(fi_cntr_wait(a.sends, 100, -1) == -FI_EPERM);
		CHECK(fi_av_insert(a.av, a.name, 1, &number, 0, NULL) == -FI_EPERM);
		CHECK(fi_eq_sread(eq, &event_number, &event, sizeof(event), -1, 0) == -FI_EPERM);
		close_both();
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* The child has changed nothing here. */
	connect_sides(&a, &b, PEER);
	CALL(fi_close(&eq->fid));
	close_both();
}

static volatile int reads;

static void *read_until_told(void *queue)
{
	struct fi_cq_tagged_entry entry;
	while (reads)
		fi_cq_read(queue, &entry, 1);
	return NULL;
}

static void an_endpoint_closes_while_a_thread_reads_its_queue(void)
{
	static unsigned char buffer[64], sent[64];
	for (int round = 0; round < 20; round++) {
		pthread_t reader;
		open_both(0);
		CALL(fi_recv(b.ep, buffer, sizeof(buffer), NULL, PEER, &contexts[0]));
		reads = 1;
		CALL(pthread_create(&reader, NULL, read_until_told, b.cq));
		CALL(fi_send(a.ep, sent, sizeof(sent), NULL, PEER, &contexts[1]));
		CALL(fi_close(&b.ep->fid));
		/* From here on, the buffer is the program's. */
		memset(buffer, 0xee, sizeof(buffer));
		for (int i = 0; i < 1000; i++)
			fi_cq_read(a.cq, NULL, 0);
		for (size_t i = 0; i < sizeof(buffer); i++)
			CHECK(buffer[i] == 0xee);
		reads = 0;
		CALL(pthread_join(reader, NULL));
		CALL(fi_close(&b.cq->fid));
		CALL(fi_close(&b.av->fid));
		close_side(&a);
	}
}

static void injected_messages_arrive_although_their_endpoint_is_closed(void)
{
	enum { MANY = 2000 };
	char byte = 7;
	open_side(&a, SELECTIVE);
	open_side(&b, SELECTIVE);
	introduce(&a, &b);
	introduce(&b, &a);
	/* More than a connection has room for, and the connection is not open yet. */
	for (int i = 0; i < MANY; i++)
		CALL(fi_tinject(a.ep, &byte, 1, PEER, (uint64_t)i));
	pthread_t reader;
	reads = 1;
	CALL(pthread_create(&reader, NULL, read_until_told, b.cq));
	CALL(fi_close(&a.ep->fid));
	reads = 0;
	CALL(pthread_join(reader, NULL));
	for (int i = 0; i < MANY; i++) {
		struct iovec in = {&byte, 1};
		struct fi_msg_tagged msg = {.msg_iov = &in, .iov_count = 1, .addr = PEER, .tag = (uint64_t)i};
		msg.context = &contexts[i];
		CALL(fi_trecvmsg(b.ep, &msg, FI_COMPLETION));
		struct fi_cq_tagged_entry entry;
		ssize_t got;
		while ((got = fi_cq_read(b.cq, &entry, 1)) == -FI_EAGAIN)
			;
		CHECK(got == 1 && entry.op_context == &contexts[i]);
	}
	CALL(fi_close(&a.cq->fid));
	CALL(fi_close(&a.av->fid));
	close_side(&b);
}

static void a_bound_event_queue_stays_open(void)
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fid_eq *eq;
	struct fid_ep *ep;
	CALL(fi_eq_open(fabric, &attr, &eq, NULL));
	CALL(fi_endpoint(domain, info, &ep, NULL));
	CALL(fi_ep_bind(ep, &eq->fid, 0));
	CHECK(fi_close(&eq->fid) == -FI_EBUSY);
	CALL(fi_close(&ep->fid));
	CALL(fi_close(&eq->fid));
}

/* The error entries of programs for versions before 1.5 end before the size of the details. */
static void error_entries_are_as_long_as_the_version_of_the_program_says(void)
{
	struct fi_info *info_now = info, *hints = fi_dupinfo(info);
	struct fid_fabric *fabric_now = fabric;
	struct fid_domain *domain_now = domain;
	for (unsigned minor = 4; minor <= 5; minor++) {
		CALL(fi_getinfo(FI_VERSION(1, minor), NULL, NULL, 0, hints, &info));
		CALL(fi_fabric(info->fabric_attr, &fabric, NULL));
		CALL(fi_domain(fabric, info, &domain, NULL));
		open_both(0);
		for (size_t size = 0; size <= 8; size += 8) {
			struct fi_cq_tagged_entry entry;
			struct fi_cq_err_entry error = {.err_data = contexts, .err_data_size = size};
			char byte;
			CALL(fi_trecv(b.ep, &byte, 1, NULL, PEER, 1, 0, &contexts[0]));
			CALL(fi_cancel(&b.ep->fid, &contexts[0]));
			CHECK(take(&b, &entry) == -FI_EAVAIL);
			CHECK(fi_cq_readerr(b.cq, &error, 0) == 1 && error.err == FI_ECANCELED);
			CHECK(error.err_data_size == (minor == 4 ? size : 0));
			CHECK(error.err_data == (minor == 4 || size == 0 ? NULL : (void *)contexts));
		}
		close_both();
		CALL(fi_close(&domain->fid));
		CALL(fi_close(&fabric->fid));
		fi_freeinfo(info);
	}
	fi_freeinfo(hints);
	info = info_now;
	fabric = fabric_now;
	domain = domain_now;
}

static void events_of_the_program_are_kept(void)
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_eq_entry entry = {.data = 5}, got;
	struct fid_eq *eq;
	uint32_t number;
	CALL(fi_eq_open(fabric, &attr, &eq, NULL));
	CHECK(fi_eq_read(eq, &number, &got, sizeof(got), 0) == -FI_EAGAIN);
	CHECK(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0) == sizeof(entry));
	CHECK(fi_eq_read(eq, &number, &got, sizeof(got), FI_PEEK) == sizeof(got));
	CHECK(fi_eq_read(eq, &number, &got, 4, 0) == -FI_ETOOSMALL);
	CHECK(fi_eq_sread(eq, &number, &got, sizeof(got), -1, 0) == sizeof(got));
	CHECK(number == FI_NOTIFY && got.data == 5);
	CHECK(fi_eq_sread(eq, &number, &got, sizeof(got), 1, 0) == -FI_EAGAIN);
	attr.wait_obj = FI_WAIT_FD;
	CALL(fi_close(&eq->fid));
	CHECK(fi_eq_open(fabric, &attr, &eq, NULL) == -FI_ENOSYS);
}

/* Messages of each way of travelling; a device copies the pieces of the last. */
static void exchange_many(unsigned char *sent, unsigned char *got)
{
	static const size_t lengths[] = {32, 5000, 20000, 100000};
	for (int i = 0; i < 400; i++) {
		size_t len = lengths[i % 4];
		/* Every second one comes before its receive. */
		if (i & 4)
			CALL(fi_trecv(b.ep, got, len, NULL, PEER, 7, 0, &contexts[1]));
		CALL(fi_tsend(a.ep, sent, len, NULL, PEER, 7, &contexts[0]));
		if (!(i & 4)) {
			for (int pass = 0; pass < 10; pass++)
				fi_cq_read(b.cq, NULL, 0);
			CALL(fi_trecv(b.ep, got, len, NULL, PEER, 7, 0, &contexts[1]));
		}
		succeed(&b, &contexts[1]);
		succeed(&a, &contexts[0]);
	}
}

static void received_messages_leave_nothing_in_memory(void)
{
	open_both(0);
	unsigned char *sent = filled(100000, 1), *got = malloc(100000);
	/* Lists get their length. */
	exchange_many(sent, got);
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < 5; i++)
		exchange_many(sent, got);
	/* Less than 16 bytes for each of 2000 messages. */
	CHECK(mallinfo2().uordblks < before + 32000);
	free(sent);
	free(got);
	close_both();
}

/* Asks once for each set of capabilities, copies the answers, and frees both. */
static void ask_for_offers(void)
{
	static const uint64_t asked[] = {0, FI_MSG, FI_TAGGED, FI_RMA, FI_ATOMIC, FI_TAGGED | FI_RMA | FI_DIRECTED_RECV};
	for (size_t i = 0; i < COUNT(asked); i++) {
		struct fi_info *hints = fi_allocinfo(), *offer, *copy;
		hints->caps = asked[i];
		hints->fabric_attr->prov_name = strdup("telpher");
		CALL(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &offer));
		copy = fi_dupinfo(offer);
		CHECK(copy && (copy->caps & asked[i]) == asked[i]);
		CHECK(strcmp(copy->domain_attr->name, offer->domain_attr->name) == 0);
		fi_freeinfo(copy);
		fi_freeinfo(offer);
		fi_freeinfo(hints);
	}
}

/* libfabric frees what the provider has allocated. */
static void offers_leave_nothing_in_memory(void)
{
	ask_for_offers();
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < 200; i++)
		ask_for_offers();
	CHECK(mallinfo2().uordblks < before + 200);
}

static const int ends[] = {SIGTERM, SIGINT, SIGSEGV, SIGBUS};

/* The program keeps its own handlers, and what the provider needs for itself changes no end of the program. */
static void signals_end_the_program_as_before(void)
{
	open_both(0);
	for (size_t i = 0; i < COUNT(ends); i++) {
		struct sigaction action;
		CALL(sigaction(ends[i], NULL, &action));
		CHECK(i >= 2 || action.sa_handler == SIG_DFL);
		pid_t child = fork();
		if (child == 0) {
			struct rlimit no_core = {0, 0};
			setrlimit(RLIMIT_CORE, &no_core);
			raise(ends[i]);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == ends[i]);
	}
	close_both();
}

static void an_endpoint_that_cannot_be_opened_is_an_error(void)
{
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	CALL(fi_cq_open(domain, &cq_attr, &cq, NULL));
	CALL(fi_av_open(domain, &av_attr, &av, NULL));
	struct rlimit files, none;
	CALL(getrlimit(RLIMIT_NOFILE, &files));
	none = files;
	none.rlim_cur = 3;
	CALL(setrlimit(RLIMIT_NOFILE, &none));
	int opened = fi_endpoint(domain, info, &ep, NULL), enabled = 0;
	if (opened == 0) {
		CALL(fi_ep_bind(ep, &av->fid, 0));
		CALL(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
		enabled = fi_enable(ep);
	}
	CALL(setrlimit(RLIMIT_NOFILE, &files));
	CHECK(opened < 0 || enabled < 0);
	if (opened == 0)
		CALL(fi_close(&ep->fid));
	CALL(fi_close(&cq->fid));
	CALL(fi_close(&av->fid));
	/* The next one opens. */
	open_both(0);
	close_both();
}

/* Returns the address space that this process uses, in bytes. */
static size_t address_space(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	size_t pages = 0;
	CHECK(file && fscanf(file, "%zu", &pages) == 1);
	fclose(file);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void a_connection_without_memory_fails_its_messages(void)
{
	open_side(&a, 0);
	open_side(&b, 0);
	introduce(&a, &b);
	introduce(&b, &a);
	char sent[8] = "message", got[8] = "";
	/* Small allocations succeed, and the memory of a connection does not. */
	struct rlimit before, less;
	CALL(getrlimit(RLIMIT_AS, &before));
	less = before;
	less.rlim_cur = address_space() + (1 << 20);
	CALL(setrlimit(RLIMIT_AS, &less));
	CALL(fi_tsend(a.ep, sent, sizeof(sent), NULL, PEER, 1, &contexts[0]));
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	CHECK(take(&a, &entry) == -FI_EAVAIL);
	CALL(setrlimit(RLIMIT_AS, &before));
	CHECK(fi_cq_readerr(a.cq, &error, 0) == 1 && error.op_context == &contexts[0] && error.err > 0);
	/* Messages the other way arrive. */
	CALL(fi_trecv(a.ep, got, sizeof(got), NULL, PEER, 2, 0, &contexts[1]));
	CALL(fi_tsend(b.ep, sent, sizeof(sent), NULL, PEER, 2, &contexts[2]));
	succeed(&a, &contexts[1]);
	succeed(&b, &contexts[2]);
	CHECK(memcmp(sent, got, sizeof(sent)) == 0);
	close_both();
}

static const struct test cases[] = {
	CASE(all_sizes_arrive),
	CASE(segments_are_joined),
	CASE(tags_select_messages),
	CASE(messages_of_one_tag_match_in_order),
	CASE(probes_find_claim_and_discard),
	CASE(unmatched_receives_are_canceled_once),
	CASE(long_messages_are_truncated),
	CASE(one_buffer_receives_many_messages),
	CASE(an_endpoint_sends_to_itself),
	CASE(completions_come_if_they_are_asked_for),
	CASE(a_short_queue_keeps_all_completions),
	CASE(counters_count_all_operations),
	CASE(a_directed_receive_takes_messages_of_its_peer_only),
	CASE(sends_before_the_receives_do_not_deadlock),
	CASE(thousands_of_unexpected_messages_are_kept),
	CASE(addresses_are_checked),
	CASE(bad_arguments_are_refused),
	CASE(events_of_the_program_are_kept),
	CASE(failed_messages_keep_the_context_of_their_buffer),
	CASE(a_forked_child_is_told_at_once),
	CASE(an_endpoint_closes_while_a_thread_reads_its_queue),
	CASE(injected_messages_arrive_although_their_endpoint_is_closed),
	CASE(a_bound_event_queue_stays_open),
	CASE(error_entries_are_as_long_as_the_version_of_the_program_says),
	CASE(received_messages_leave_nothing_in_memory),
	CASE(offers_leave_nothing_in_memory),
	CASE(signals_end_the_program_as_before),
	CASE(an_endpoint_that_cannot_be_opened_is_an_error),
	CASE(a_connection_without_memory_fails_its_messages),
};

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo();
	/* A shell may have left some ignored, and libraries of other providers have handlers of their own. */
	for (size_t i = 0; i < COUNT(ends); i++)
		signal(ends[i], SIG_DFL);
	hints->caps = FI_MSG | FI_TAGGED | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	run(hints, cases, COUNT(cases), argc < 2 ? NULL : argv[1]);
	return 0;
}
