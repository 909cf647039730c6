"""Every bound of the system, each with a name. Relations between bounds are asserted next to them."""

# --- wire ---
short_string_bytes_max = 255
"""Longest AMQP short string: its length travels in one byte."""

table_depth_max = 64
"""Nesting of tables and arrays inside one field table; deeper input could exhaust the stack."""

table_bytes_max = 16 * 1024 * 1024
"""Largest encoded field table; a table never exceeds one frame, so this is far above any frame-max in use."""

# --- topology ---
ttl_ms_max = 10 * 365 * 24 * 3600 * 1000
"""Longest message or queue time to live: ten years, as in RabbitMQ."""

priority_max = 255
"""Highest `x-max-priority`: a message's priority travels in one byte."""

hash_weight_max = 1_000_000
"""Largest weight of one binding to an x-consistent-hash exchange."""

deaths_max = 256
"""Entries kept in a message's x-death history; with more the headers might not fit a consumer's frame."""

# --- meta ---
meta_entry_bytes_max = 256 * 1024 * 1024
"""Largest command in the metadata log: an import of definitions is one command."""

meta_log_bytes_max = 4 * 1024 * 1024
"""The log may grow to this, or to the last snapshot's size if that is larger, before the next snapshot."""

meta_snapshot_slice_records = 100
"""Records of a snapshot encoded in one pass of the loop: less than half a millisecond."""

ha_sync_batch_size = 4_096
"""Messages per batch of a full copy, unless a policy says `ha-sync-batch-size`."""

ha_replace_delay_ms = 60_000
"""How long `ha-mode: exactly` keeps the place of a copy that went away, unless a policy says otherwise."""

ha_mirror_timeout_ms = 10_000
"""How long a mirror may hold back confirms, unless a policy says `ha-mirror-timeout`."""

quorum_group_size = 3
"""Copies of a quorum queue, unless its arguments say `x-quorum-initial-group-size`."""

patterns_cached_max = 1_024
"""Compiled patterns of policies kept: one event may ask for the policy of every queue."""

pattern_bytes_max = 4_096
"""Longest regular expression that can be set: it is compiled in a few milliseconds, once."""

filter_bytes_max = short_string_bytes_max
"""Longest one by which queues are chosen and lists filtered, which is compiled each time it is asked for."""

pattern_depth_max = 40
"""Brackets within brackets of a regular expression: Python's parser calls itself for each."""

pattern_quick_steps = 20_000
"""What Python's `re` may need at most for one name, some 50 µs, before the automaton is used."""

pattern_steps_max = 250_000
"""The same for an expression that has no automaton: up to a millisecond."""

patterns_checked_per_pass = 10
"""Policies and permissions whose patterns a starting node looks at in one pass."""

pattern_slice_names = 100
"""Names that an ordinary expression is looked for in one after the other before the loop gets its turn."""

automaton_slice_names = 8
"""The same for one that has an automaton: a tenth of a millisecond each at worst."""

pattern_name_bytes_max = 1_024
"""Longest name that the automaton looks at; those of queues and exchanges have 255 bytes at most."""

automaton_copies_max = 2_048
"""Places of an expression that only stand there because counted repeats are written out."""

filter_copies_max = 1_024
"""The same for one by which a list is filtered: written out in less than a millisecond."""

automaton_rules_max = 96
"""What may follow what, apart from octets one after the other: each costs some 60 ns per octet of a name."""

automaton_look_arounds_max = 8
"""Each is one more automaton, and one more walk through every name."""

automaton_steps_cached_max = 10_000
"""Steps that all automata together remember, some 200 bytes each."""

automaton_machines_cached_max = 16
"""Combinations of conditions it keeps; few expressions have more than four."""

access_cache_max = 10_000
"""Permission decisions kept per user and vhost, and expanded topic patterns; names come from clients."""

logins_waiting_max = 256
"""Different passwords waiting to be hashed; at some 20 ms each this is more than any client waits."""

login_failures_per_user_max = 20
"""Failed log-ins of one user name, given back evenly over the window."""

login_failures_per_address_max = 60
"""Failed log-ins from one address, given back evenly over the window; a gateway may stand for many users."""
login_failures_window_us = 60 * 1_000_000
"""Time in which a spent allowance of failures comes back."""
login_failures_tracked_max = 10_000
"""Names and addresses whose failures are remembered."""

assert login_failures_per_user_max <= login_failures_per_address_max, "one user must not need many addresses"

# --- runtime ---
read_buffer_bytes = 256 * 1024
"""Bytes taken from a socket at once; one buffer serves all connections: nothing refers to it afterwards."""
client_output_bytes_high = 512 * 1024
"""Bytes waiting in one connection's transport above which nothing more is delivered to it."""
client_output_bytes_low = 128 * 1024
"""Bytes waiting in the transport at which deliveries go on."""
assert client_output_bytes_low < client_output_bytes_high
close_linger_ms_max = 2_000
"""How long a closed connection is still read, so that its last frame is not lost to a reset."""
proxy_header_bytes_max = 4_096
"""Largest PROXY header of version 2, its extensions included."""
open_files_percent_max = 90
"""Part of the allowed descriptors above which new connections are refused."""
open_data_files_max = 512
"""Data files kept open; beyond it the one not used for longest is closed, flushed first if it has to be."""
open_data_files_percent_max = 4
"""The same as a part of the allowed descriptors, if that is less; some that are being closed come on top."""
assert open_files_percent_max + 2 * open_data_files_percent_max < 100, "connections must leave room for files"
disk_look_bytes = 8 * 1024 * 1024
"""Bytes written after which the free disk is looked at again, however little time has passed."""
tick_us = 1_000_000
"""Longest time between two ticks of the node."""
tick_connections = 50
"""Connections that are looked at for heartbeats and timeouts in one pass: half a millisecond."""

warm_bytes_per_queue = 800
"""Free memory that is kept warm for each queue (runtime/heap): what its eight tables with an entry per queue
take when all of them grow."""
warm_bytes_max = 16 * 1024 * 1024
"""And at most."""
warm_block_bytes = 1024 * 1024
"""It is taken and written to in blocks of this size."""
heap_spare_bytes_max = 2 * warm_bytes_max
"""What is free at the end of the heap goes back to the system if it is more than that."""
warm_pause_us = 100_000
"""While a node works, it looks so often whether there is enough."""

# --- connections ---
handshake_frame_bytes_max = 4096
"""Largest frame before the client's tune-ok: every client can read and write frames of this size."""
silence_us = 3_000_000
"""How long a client that failed the handshake, or sent broken frames, is kept waiting before its socket is
closed.
"""
close_wait_us = 30_000_000
"""How long to wait for the client to answer connection.close and close the socket."""
message_bytes_ceiling = 512 * 1024 * 1024
"""Largest `max_message_size` that can be configured, as in RabbitMQ."""

# --- queues and the pass ---
publish_ahead_bytes = 4 * 1024 * 1024
"""Ready bytes of a queue with a willing consumer above which its publishers are parked (the default)."""
output_stall_us = 1_000_000
"""A consumer whose socket has taken nothing for this long no longer holds publishers back."""
entries_freed_per_pass = 4096
"""Entries of purged, deleted and spilled queues freed in one pass: about half a millisecond."""
sweep_entries = 16_384
"""Entries looked at in one turn for what expired behind a living head: a fraction of a millisecond."""
sweep_pause_us = 1_000_000
"""Least time between two looks at the whole of a queue."""
clock_jump_us = 5_000_000
"""A wall clock that gains more than this on the machine's own time between two ticks has been set."""
clock_jump_hold_us = 60_000_000
"""How long messages still expire by the old clock after that: time to notice and set it back."""
policy_slice_objects = 10
"""Queues and exchanges that follow a changed policy in one pass: less than a millisecond with their turns."""
turn_rounds_max = 16
"""How often queues touched by other queues (dead letters) get a turn within one pass."""

# --- administration ---
delete_slice_queues = 3
"""Queues of a vhost to be deleted that go at once."""
import_read_max = 50
"""Commands of a definition file read and checked in one pass, before the first of them is applied."""
import_slice_max = 32
"""Commands of a definition file applied before the import waits for the disk and lets others go on."""
close_reason_bytes_max = 200
"""An administrator's reason for closing a connection; longer ones are cut, since a reply text has 255
octets.
"""
assert close_reason_bytes_max + 40 <= short_string_bytes_max
http_slice_ms = 0.3
"""How long one answer is built before the loop gets its turn; a seventh of what may hold the loop, since
what begins and ends an answer is done in the same turn as a slice.
"""
http_held_bytes_max = 256 * 1024
"""A longer list is sent while it is built."""
http_sort_run = 256
"""Rows sorted at once; sorted runs are then merged in slices."""
http_body_bytes_max = 64 * 1024 * 1024
"""Largest body of an admin request: a definition file of a large installation, or a message."""
http_json_bytes_max = 1024 * 1024
"""Largest body of any other request."""
http_json_step_bytes = 32 * 1024
"""JSON that is decoded or encoded at once: a millisecond at worst."""
http_published_step_bytes = 512 * 1024
"""Of a message published by hand, fed to the node before everybody else gets a turn."""
http_page_size = 100
"""Rows of a page, if the request does not say."""
http_page_size_max = 500
"""Most rows of a page."""
audit_text_max = 400
"""Characters of a name or a reason in the audit log."""
auth_sources_max = 1_000
"""Sources of log-ins (protocol, address, user) that are counted one by one."""
http_session_ms = 15_000
"""How long publishing or getting a message over HTTP waits for the node before it is given up."""
http_got_per_turn = 4
"""Messages got by hand from the node before everybody else gets a turn."""
http_got_messages_max = 10_000
"""Messages got by one request."""
http_got_bytes_max = 64 * 1024 * 1024
"""Bytes of bodies after which such a request takes no further message."""
digits_max = 18
"""Digits of a number in a request: anything longer is no number somebody means."""
browse_messages_max = 500
"""Newest messages of a queue that are looked at in one go."""
browse_slice_bytes = 16 * 1024
"""Bytes of a log read at once for such a look: some dozen messages, half a millisecond."""
events_per_look = 200
"""Events read in one look, for a question about what happened."""
browse_body_bytes_max = 512 * 1024
"""Bytes shown of the body of one of them."""
browse_bytes_max = 8 * 1024 * 1024
"""Bytes of bodies and properties in one such look."""
events_looked_max = 10_000
"""Events read for one question about what happened; older ones are asked for from where it stopped."""

log_tail_bytes_max = 1024 * 1024
"""Most of a log file that one `log_tail` reads."""

# --- queue log ---
journal_file_bytes = 32 * 1024 * 1024
"""Size at which a journal file is followed by the next."""
disk_reserve_bytes = 64 * 1024 * 1024
"""Space kept back for removals, checkpoints and definitions on a full disk (the default)."""
assert disk_reserve_bytes >= 2 * journal_file_bytes, "a journal file must fit in twice: as it is and emptied"
journal_files_max = 4
"""Journal files kept before the oldest is emptied into segments: recovery reads no more than about this."""
recovery_slice_bytes = 512 * 1024
"""Bytes of a log file read at once at start: they stay in the processor's cache until they are dealt with."""
removal_flush_us = 100_000
"""Longest time a removal waits for a flush."""
place_bytes_min = 64 * 1024
"""Distance of two places in the index of a queue: how much is read to find one record."""
horizon_chunk_min = 64
horizon_chunk_max = 4096
"""Bounds of how far the delivery horizon runs ahead: what a crash may mark as redelivered without need."""
queue_memory_bytes = 16 * 1024 * 1024
"""Bytes of ready messages a queue keeps in memory before the rest is left on disk."""
lazy_memory_bytes = 1024 * 1024
"""The same for a lazy queue."""
node_memory_bytes = 256 * 1024 * 1024
"""Bytes of ready messages all durable queues together keep in memory; beyond it each has only its share."""
share_memory_bytes_min = 16 * 1024
"""Least share of a queue, however many there are."""
assert share_memory_bytes_min < lazy_memory_bytes < queue_memory_bytes < node_memory_bytes
window_entries = 4096
"""Entries of a spilled queue kept in memory at its head, and read back at once."""
read_back_bytes = 1024 * 1024
"""Bytes read from disk at once for a queue whose head lies there."""
recycle_slice_bytes = 1024 * 1024
recycle_slice_batches = 80
"""Bytes, and about how many batches, of a file copied in one step: half a millisecond to one."""
segment_bytes_min = 1024 * 1024
segment_bytes_max = 64 * 1024 * 1024
"""Size of a queue's first segment, and of its largest."""
dead_letter_backlog_max = 100_000
dead_letter_backlog_bytes_max = 1024 * 1024 * 1024
"""Dead letters of one queue on their way to durable queues; beyond it what max-length drops is no longer
waited for.
"""
tx_methods_max = 100_000
"""Publishes and acknowledgements that one channel may hold back for its commit."""
tx_bytes_max = 256 * 1024 * 1024
"""Bytes of these publishes; one message may be larger."""
dead_letter_note_us = 60_000_000
"""Least time between two notes that a queue's dead letters are over that bound."""
pace_messages = 500
"""Ready messages up to which confirms are never held for consumers."""
pace_rate_min = 2_000
"""Messages per second that consumers must take for publishers to be paced by them."""
pace_us_max = 100_000
"""Longest time a confirm is held for consumers: a publisher with a thousand unconfirmed messages can be kept
back to ten thousand per second.
"""
pace_publishers = 16
"""Publishers of one queue that together can be kept back to what its consumers take: a confirm is held for no
longer than consumers need for so many times what its publisher has not confirmed.
"""
pace_window_us = 50_000
"""Time over which the rate of consumers is measured."""
segment_dead_bytes_max = 16 * 1024 * 1024
"""Bytes in dead segments at which they are given back without waiting for the journal to fill."""
segment_live_part_min = 4
"""A segment of which less than one in so many messages is live is rewritten."""
segment_rewrite_bytes_max = 64 * 1024 * 1024
"""Bytes of neighbouring segments rewritten at once; the journal is not emptied meanwhile."""
assert segment_rewrite_bytes_max >= segment_bytes_max, "every segment must be rewritable"
rewrite_look_publishes = 1_000_000
"""Messages of segments looked at in one search for mostly dead ones: about a millisecond at most."""
survey_logs = 30
"""Logs looked at in one pass for cursors that hold too long and for what is dead: half a millisecond."""
checkpoint_logs = 100
"""Logs whose part of a checkpoint is made in one pass: less than a millisecond if they are short."""
checkpoint_slice_bytes = 64 * 1024
"""Bytes of such parts after which a pass makes no further one."""
rewrite_look_segments = 64
"""Segments of one queue looked at together."""
index_mark_bytes = 4 * 1024 * 1024
"""Distance of what the checkpoint remembers of a segment's inside: how much is read to find a record there
after a restart.
"""
range_slice_bytes = 128 * 1024
"""Bytes read from disk at once for a reader of a range of records: about a millisecond if they are tiny."""
cursors_max = 64
"""Cursors of one queue."""
recent_bytes_max = 64 * 1024 * 1024
"""Bytes of the latest batches of all mirrored queues kept in memory for those who have to be sent them."""
copy_mark_bytes = 1024 * 1024
"""Bytes of a mirrored queue after which its durable mark is noted in the journal: what is above the last note
counts as uncertain after a restart.
"""
copy_read_bytes = 1024 * 1024
"""Bytes of records read from disk at once to be sent to a mirror, one batch at least."""
copy_hold_bytes_max = 1024 * 1024 * 1024
"""Bytes of a queue's log kept for a mirror that catches up; beyond them it goes on with a newer state."""
fold_rows_min = 1_000
"""Deaths and counts of a copy that are kept before it is looked which of them are over."""
cursor_bytes_max = 1024 * 1024 * 1024
"""Bytes kept for a cursor alone before it is lost (the default of x-cursor-max-bytes)."""
cursor_age_us = 7 * 24 * 3600 * 1_000_000
"""Time without its reader before a cursor is lost (the default of x-cursor-max-age)."""
flush_files_max = 8
"""Segments flushed one by one; if there are more, the whole file system is flushed in one call."""

# --- backup ---
copy_slice_bytes = 1024 * 1024
"""Bytes of a file copied at once, off the loop; the checksum of a slice takes a fraction of a millisecond."""

# --- peer links ---
peer_handshake_us = 5_000_000
"""How long two nodes get to prove who they are to each other; TCP and TLS have as much before that."""
peer_handshake_bytes_max = 1024
"""Largest message of that handshake: two names, two addresses and some fixed fields fit in easily."""
peer_reason_bytes_max = 200
"""Longest sentence a peer may send with a refusal or a goodbye."""
assert peer_reason_bytes_max + 16 <= peer_handshake_bytes_max
peer_secret_chars_min = 16
"""Shortest secret of a cluster: who talks to a node once may try short ones at leisure."""
peer_chunk_bytes = 64 * 1024
"""Largest payload of one frame between nodes: what a control frame may have to wait for above the socket."""
peer_bulk_bytes_max = 544 * 1024 * 1024
"""Largest bulk payload, sent in chunks: a batch is never split, and one message may fill it."""
assert peer_bulk_bytes_max >= message_bytes_ceiling + table_bytes_max, "every message must fit in one batch"
peer_window_bytes = 2 * 1024 * 1024
"""Bulk bytes a node lets its peer send before it has taken the ones before: all that can stand in front of a
control frame in sockets and on the wire. At 100 Mbit/s these take 0.17 s, less than an election needs.
"""
assert peer_window_bytes >= 4 * peer_chunk_bytes, "the window is given back in quarters"

peer_bulk_queue_bytes = 8 * 1024 * 1024
"""Bulk bytes waiting on one link above which it takes no more; the payload that reaches it is still taken."""

peer_control_queue_bytes = 4 * 1024 * 1024
"""Control bytes waiting on one link above which it takes no more: its peer has not read for long."""

peer_write_bytes = 128 * 1024
"""Bytes handed to the transport of a link at once."""

peer_transport_bytes_high = 64 * 1024
peer_transport_bytes_low = 16 * 1024
"""Bytes waiting in the transport of a link at which it is handed no more, and again some."""
assert peer_transport_bytes_low < peer_transport_bytes_high <= peer_write_bytes

peer_unsent_bytes = 128 * 1024
"""Bytes the kernel takes for a link beyond those on the wire; what waits above it can still be overtaken."""

peer_keepalive_us = 500_000
"""Time between two keepalives of a link, which also measure the round trip and the peer's clock."""

peer_suspect_us = 2_000_000
"""Silence after which a peer is suspected to be gone."""
assert peer_suspect_us >= 3 * peer_keepalive_us, "one late keepalive is no reason for suspicion"

peer_silence_us = 10_000_000
"""Silence after which a link is given up and dialled anew: TCP alone would try the old one for minutes, and
for up to two minutes after a cut has healed. Longer than a lease, so that nothing hangs on it any more.
"""
assert peer_silence_us > 2 * peer_suspect_us

peer_skew_us = 1_000_000
"""Difference between the clocks of two nodes above which it is shown."""

peer_tick_us = 100_000
"""Time between two ticks of the links."""

peer_dial_us_min = 50_000
peer_dial_us_max = 3_000_000
"""Wait before the second attempt to reach a node, doubled with each failure, and the longest one."""

peer_strangers_max = 64
"""Connections that have not proved anything yet; beyond it the oldest has to go."""

peer_note_us = 60_000_000
"""Least time between two equal notes about the links of one address."""

peer_notes_max = 256
"""Addresses whose last note is remembered."""

# --- forwarding to the master of a queue on another node ---
forward_owed_bytes_max = 16 * 1024 * 1024
"""Bytes of publishes kept for one master until it reports them; beyond it their publishers are parked."""

forward_block_bytes = 256 * 1024
"""Bytes of publishes sent to a master as one block; a larger message is a block of its own."""
assert forward_block_bytes < forward_owed_bytes_max

forward_batch_bytes = 16 * 1024 * 1024
"""Bytes a transaction publishes to one queue of another node in one batch; a larger one is several."""
assert forward_batch_bytes + message_bytes_ceiling + table_bytes_max <= peer_bulk_bytes_max

forward_window_bytes = 512 * 1024
"""Bytes of deliveries to one consumer of another node that may be under way or wait there for its client."""

sink_turn_bytes = 256 * 1024
"""Bytes of rows of sinks that one queue takes in one pass, and up to one block more."""

sink_window_bytes = 2 * 1024 * 1024
"""Bytes of rows of one sink that are under way to one queue."""

sink_cache_bytes = 32 * 1024 * 1024
"""Bytes of staged rows that a sink keeps in memory until they have arrived; the others are read back."""

sink_copies = 3
"""Nodes that have the staging queue of a sink, if there are so many."""

sink_tx_timeout_us = 3600 * 1_000_000
"""After this, by default, a staged transaction cannot be committed any more and is dropped."""

sink_kept_ms = 30 * 24 * 3600 * 1000
"""The state of a sink is kept so long after it was used last; no transaction waits longer."""

sink_wait_us_max = 600 * 1_000_000
"""How long the answer to a commit may wait for its rows to reach their queues."""

sink_txs_max = 100_000
"""Transactions in one batch: partitions of one query."""

sink_partition_max = (1 << 32) - 1
"""Highest index of a partition: so many octets has it in the log."""

sink_retry_us = 500_000
"""After this a sink looks again whether a queue can be reached for which it has rows."""

forward_settles_kept = 32
forward_spans_kept = 4096
"""Frames of settlements, and spans in them, after which a home node hears that it need not keep them."""

forward_reply_bytes_max = 1024 * 1024
"""Bytes of answers by direct reply-to that wait for a full link; what comes then is dropped."""

publish_timeout_us = 30_000_000
"""How long a publish waits for a master that is out of reach before it is refused."""

link_grace_us = 5_000_000
"""How long consumers are kept on both sides while the link between their node and their queue's is broken."""
assert link_grace_us < publish_timeout_us

failover_grace_us = 10_000_000
"""How long consumers and requests wait for a new master of a mirrored queue, and it for other nodes."""
assert link_grace_us < failover_grace_us < publish_timeout_us

failover_wait_us = 2_000_000
"""How long a new request waits while a mirrored queue has no master."""

forward_inherited_max = 1 << 24
"""Deliveries that one channel of another node may hold when its queue gets a new master."""

forward_epochs_max = 256
"""Epochs of a queue's log that home nodes hear of; what is older comes again when the master changes."""

# --- news between nodes ---
news_period_us = 1_000_000
"""Time between two reports of a node about itself to the others."""

news_pause_us = 200_000
"""Least time between two reports, if something changes that the others act on."""
assert news_pause_us < news_period_us < peer_suspect_us

news_names_max = 500
"""Vhosts, and users, up to which all of them are reported; of more only those that have a limit."""

news_names_bytes_max = 48 * 1024
"""Bytes of names in a report; those for which there is no room are counted by their own node only."""

news_listeners_max = 16
"""Listeners of a node in its report."""

news_alarms_max = 8
"""Alarms of a node in its report."""
assert news_names_bytes_max + (news_listeners_max + news_alarms_max) * 520 < peer_chunk_bytes, "one frame"

news_queues_walked = 2_000
"""Queues whose messages are counted at once for a report: a fraction of a millisecond."""

# --- inquiries between nodes ---
inquiry_silence_us = 5_000_000
"""How long a node that was asked for rows is waited for without hearing a part of them."""

inquiries_open_max = 64
"""Questions under way over one link in one direction."""

inquiry_rows_per_pass = 64
"""Rows built for other nodes in one pass of the loop: a millisecond at most."""

inquiry_values_per_row = 64
"""Queues in one row of an answer that has one value of each."""

inquiry_counted_per_step = 8
"""Queues or connections counted in one step; eight steps count as one row."""

inquiry_part_bytes = 56 * 1024
"""Bytes of rows in one frame, if not a single row has more."""
assert inquiry_part_bytes < peer_chunk_bytes, "a part and its head fit in a chunk"

inquiry_row_bytes_max = 1024 * 1024
"""Largest row that is shown to another node: a client may have told very much about itself."""

inquiry_frame_bytes_max = inquiry_part_bytes + inquiry_row_bytes_max
"""Largest frame of this kind."""

inquiry_bytes_max = 64 * 1024 * 1024
"""Bytes of rows held of answers that are not complete: about 100,000 queues."""

inquiry_ids_max = 2_000
"""Queues that can be asked for by their numbers; of more all are asked for."""

inquiry_text_bytes_max = 1024
"""Bytes of a name, or of a reason."""
inquiry_body_bytes_max = 16 * 1024
"""Bytes of the arguments of a question that a client put."""
assert inquiry_ids_max * 9 + 5 * (inquiry_text_bytes_max + 8) + inquiry_body_bytes_max < peer_chunk_bytes

# --- raft ---
raft_heartbeat_us = 100_000
"""Time between two heartbeats of a leader."""
raft_election_us_min = 500_000
raft_election_us_max = 1_000_000
"""Without a heartbeat for a time drawn from this range a voter asks whether it may stand for election."""
assert 4 * raft_heartbeat_us <= raft_election_us_min, "one lost heartbeat must not cause an election"
assert raft_election_us_min < raft_election_us_max, "voters that wait alike split the vote"
raft_election_eof_us = 50_000
"""The same after the leader's link has ended: long enough that rarely two stand at once."""
assert raft_election_eof_us < raft_election_us_min
raft_vote_us = 100_000
"""So long after its vote a voter encourages nobody else: who got it may be about to win."""
assert raft_vote_us < raft_election_us_min
raft_split_votes_max = 2
"""Elections in a row in which votes were split and that are tried again soon; later ones take their time."""
assert raft_election_eof_us << (raft_split_votes_max + 1) < raft_election_us_min
raft_witness_patience = 4
"""A witness waits so many times longer: it leads only if nobody else can."""
lease_us = 5_000_000
"""How long a node may act for the cluster without hearing from it again; who counts it dead waits so long."""
lease_use_percent = 90
"""Part of a lease its holder uses: clocks of two machines run a little differently."""
assert lease_use_percent <= 90
assert 2 * raft_election_us_max < lease_us * lease_use_percent // 100, "an election must fit into a lease"
raft_disk_stall_us = 3_000_000
"""A flush that takes longer than this: a leader steps down, and nobody stands for election on such a disk."""
assert raft_disk_stall_us < lease_us
raft_append_bytes_max = 512 * 1024
"""Bytes of entries in one message to a peer; a longer entry travels alone."""
raft_inflight_appends_max = 64
"""Messages with entries sent to a peer and not yet answered."""
raft_inflight_bytes_max = 4 * 1024 * 1024
"""Bytes of entries sent to a peer and not yet answered; the message that reaches it is still sent."""
assert raft_inflight_bytes_max + raft_append_bytes_max < peer_bulk_queue_bytes, "a link must take them"
raft_resend_us = peer_silence_us
"""What is not answered for so long over an open link is sent again: links lose nothing, peers may."""
raft_proposals_bytes_max = 64 * 1024 * 1024
"""Bytes of proposals a leader holds that are not committed; a longer one is taken if it is the only one."""
raft_waiting_max = 65_536
"""Proposals, and reads, that wait at a leader."""
raft_gated_max = 4_096
"""Messages that wait for the flush of term and vote; beyond it they are dropped, as by a broken link."""
raft_apply_slice_entries = 200
"""Entries applied in one pass of the loop."""
raft_snapshot_part_bytes = 256 * 1024
"""Bytes of a snapshot in one message."""
assert raft_snapshot_part_bytes <= raft_append_bytes_max
raft_snapshot_bytes_max = 2 * 1024 * 1024 * 1024
"""Largest snapshot a node accepts from a leader."""
raft_freed_per_pass = 500
"""Entries freed in one pass after a snapshot."""
raft_trailing_bytes_max = 1024 * 1024
"""Bytes of entries kept in memory behind a snapshot, so that a peer a little behind needs no snapshot."""
raft_promote_lag_max = 64
"""Entries a non-voter may be behind when it becomes a voter."""
raft_members_max = 255
"""Nodes in one group, non-voters included."""
raft_frame_bytes_max = meta_entry_bytes_max + 64 * 1024
"""Largest message between two nodes: one entry that travels alone."""
assert raft_append_bytes_max < raft_frame_bytes_max
identity_tokens_max = 32
"""Recorded starts a node can prove: a peer that is further behind first hears of the others."""

# --- replicated definitions ---
proposals_bytes_max = 48 * 1024
"""Bytes of proposals sent to the leader at once; a larger proposal goes alone."""
assert proposals_bytes_max < peer_chunk_bytes, "they travel as control frames where they can"
proposals_again_us = 100_000
"""How long a node waits before it sends a leader again what that could not take."""
session_folders_max = 4
"""Data folders of one name whose last command is remembered: one that was reset may still be on its way."""
session_refusals_max = 64
"""Refused commands of a node whose outcome is remembered for it, should it learn of them by a snapshot."""

# --- etcd ---
etcd_lease_s = 5
"""For how long a lease is asked for; etcd gives no shorter one than its election timeout allows."""
etcd_renew_us = 1_000_000
"""Between two renewals of it: four may be lost."""
assert 4 * etcd_renew_us < etcd_lease_s * 1_000_000 * lease_use_percent // 100
etcd_again_us = 100_000
"""Before something is asked again that failed."""
etcd_poll_us = 1_000_000
"""Between two looks whether the watch tells everything."""
etcd_txn_entries_max = 100
"""Entries written by one transaction; etcd takes 128 operations."""
etcd_txn_bytes_max = 512 * 1024
"""Bytes of these entries; etcd takes requests of 1.5 MiB."""
etcd_part_bytes = 256 * 1024
"""A longer command, and a snapshot, is written in parts of this size."""
assert etcd_part_bytes <= etcd_txn_bytes_max
etcd_parts_per_read = 2
"""Parts that are read at once: their JSON is taken apart on the loop."""
etcd_entries_per_read = 32
"""Entries that are read at once."""
etcd_log_entries_max = 4096
"""Entries behind the last snapshot before another one is written."""
etcd_trailing_entries = 256
"""Entries kept although a snapshot covers them, for nodes that were away for a moment."""
etcd_entries_per_cut = 128
"""Entries removed at once: every node is told of each."""
etcd_intents_tended_max = 4
"""Long commands of nodes that are gone, looked after at once."""
etcd_answer_s = 1.5
"""How long a request may take before another endpoint is tried."""
assert 2 * etcd_answer_s * 1_000_000 < etcd_lease_s * 1_000_000 * lease_use_percent // 100
etcd_requests_max = 64
"""Requests on their way at once; more than that means that something asks in a loop, and they fail."""
etcd_answer_bytes_max = 128 * 1024 * 1024
"""Of one answer, or of one line of a watch, in JSON."""

# --- membership ---
member_text_chars_max = 1024
"""Characters of an address or a reason that nodes tell each other."""
ask_again_us = 50_000
"""A wish about the membership is told the leader again after this time, until it has come true."""
ask_us_max = 15_000_000
"""An operator's wish is given up after this time."""
asks_relayed_max = 256
"""Wishes of others whose answers a node passes on."""
pause_grace_us = 2_000_000
"""A node that has had no lease for this long stops serving clients. Elections are shorter."""
assert pause_grace_us > raft_election_us_max, "a change of leaders must not cost connections"
waiver_us = 5_000_000
"""How long a member of a queue lets its master act without a lease, each time it is asked; `ignore` only."""
assert waiver_us <= lease_us, "a master that nobody hears of is waited for no longer than for its lease"
waiver_ask_us = 1_000_000
"""Time between two times it is asked."""
assert 2 * waiver_ask_us < waiver_us * lease_use_percent // 100
spool_memory_bytes = 1024 * 1024
"""Bytes of publishes kept in memory for one master that is out of reach before the rest goes to disk."""
assert spool_memory_bytes < forward_owed_bytes_max
spool_bytes_max = 1024 * 1024 * 1024
"""Bytes on disk that a node keeps of publishes it cannot bring to their queues; beyond it publishers wait."""
spool_file_bytes = 16 * 1024 * 1024
"""A file of the spool is not added to any more from this size on."""
branch_slice_messages = 256
"""Messages of a branch that are on their way to its queue at the same time (`autoheal`)."""
branches_max = 1_000
"""Branches of a node at the same time; beyond that publishes wait as with `ignore`."""
branch_merges_max = 16
"""Branches whose messages a node brings to their queues at the same time."""
merges_kept = 16
"""Branches of a queue that are merged, and whose numbers are remembered all the same."""
branches_per_pass = 50
"""Branches that are closed in one pass, with their consumers."""
partition_slice_connections = 200
"""Connections stopped, or let go on, in one pass when a node is cut off and when that is over."""
early_frames_max = 4
"""Frames of a linked node kept until this one has read its queues: a greeting is one."""

# --- what a cluster tells of itself ---
system_queue_bytes = 256 * 1024 * 1024
"""Bytes of messages in `mirrormq.events`, and in `mirrormq.samples`, above which the oldest are dropped."""
events_waiting_max = 20_000
"""Events kept until `mirrormq.events` can take them; further ones are counted and dropped."""
events_per_pass = 32
"""Events built in one pass: a third of a millisecond."""
samples_period_us = 1_000_000
"""Time between two samples of a node."""
samples_idle_us = 10_000_000
"""The same while nothing but time has passed."""
assert samples_period_us < samples_idle_us
samples_slice_queues = 50
"""Queues looked at in one pass for a sample."""
samples_slice_rows = 20
"""Those of them that have changed: a few tenths of a millisecond."""
samples_rows_max = 500
"""Queues in one message of a sample: about 50 KiB."""
assert samples_slice_rows < samples_rows_max
samples_cursors_max = 16
"""Cursors of one queue that a sample tells of."""
# --- rates ---
rates_period_us = 5_000_000
"""Time between two looks at all counters, as in RabbitMQ."""
rates_levels_basic = ((1, 122), (12, 62))
"""What is kept of queues, exchanges, channels and connections, as (periods per row, rows): ten minutes by
five seconds and an hour by a minute, as RabbitMQ's `basic` retention. Rows are kept of changes only."""
rates_levels_global = (*rates_levels_basic, (120, 50), (360, 49))
"""The same of vhosts and the node: also eight hours by ten minutes, and a day by half an hour."""
rates_rows_min = 14
"""Rows every object may keep at each level, whatever others keep: the last minute by five seconds."""
rates_bytes_max = 64 * 1024 * 1024
"""Bytes of all rows together above which no object is given more than `rates_rows_min`."""
assert all(rates_rows_min <= rows for _, rows in rates_levels_global)
rates_slice_objects = 50
"""Objects looked at in one pass."""
rates_slice_rows = 20
"""Those of them whose counters have changed: a few tenths of a millisecond."""
rates_settled_us = 500_000
"""A look is shown this long after it was due: by then every node has had it, though clocks differ."""
rates_sampled_rows_max = 500
"""Rows of a list that may have samples; those of a longer one have rates only."""
rates_samples_max = 400
"""Samples of one counter in an answer."""
latency_waiting_max = 512
"""Batches of one queue whose latencies are being measured; of more than that only some are."""

# --- clusters on one machine ---
local_nodes_max = 9
"""Nodes of a cluster on one machine: their ports fit between two bases that are tried for a free one."""
local_line_bytes_max = 64 * 1024
"""What is held of a log line of such a node; a longer one is shown in parts."""
local_wait_ms = 10_000
"""Time after which it is said which nodes a start is still waiting for."""

# --- mirrors ---
mirror_epochs_max = 64
"""Epochs of its log that a mirror tells its source; if none of them is known there it needs a full copy."""
mirror_frame_bytes = 1024 * 1024
"""Bytes of batches in one frame between copies; a larger batch is a frame of its own. Also what streams that
are behind read ahead for one link in one pass.
"""
assert mirror_frame_bytes + message_bytes_ceiling + table_bytes_max <= peer_bulk_bytes_max
mirror_read_bytes = 256 * 1024
"""Bytes a stream that is behind reads from the log at once."""
assert mirror_read_bytes <= mirror_frame_bytes
mirror_reads_max = 4
"""Reads under way for streams to one peer: what synchronising holds in memory, however many queues do so."""
mirror_slice_queues = 25
"""Queues looked at in one pass when something concerns many: one to two milliseconds."""
mirror_looks_max = 12
"""The same for what policies want of them, which nobody waits for: less than a millisecond."""
mirror_early_max = 20_000
"""Queues about whose next epoch peers may have spoken before this node heard of it."""
mirror_proposals_max = 64
"""Changes of views a node asks for at once: a returning node is admitted to its queues little by little."""
mirror_removals_max = 4
"""Commands that a node has on their way to take a dead one out of its views, each of what a pass looks at."""
mirror_answer_us = 300_000
"""How long a mirror waits for its neighbour's answer before it asks the master."""
mirror_timeout_us = 10_000_000
"""Default of ha-mirror-timeout: how long a member may hold up confirms before it is removed."""
assert mirror_answer_us < peer_suspect_us < mirror_timeout_us
mirror_await_us = 1_000_000
"""How long confirms wait for the flush of a learner that is about to be admitted."""
assert mirror_await_us < mirror_timeout_us
mirror_retry_us = 1_000_000
"""How long a master waits after a refusal before it asks for a view again."""
mirror_transfer_us = 5_000_000
"""How long a planned transfer may wait for the other members; publishers wait as long."""
hand_over_tries_max = 3
"""Times a node that stops tries to give a queue away, if those it tries with die or do not come along."""
mirror_tick_us = 100_000
"""Time between two ticks."""
assert mirror_tick_us < mirror_answer_us
mirror_backlog_bytes = 64 * 1024 * 1024
"""Bytes of one queue that are not durable on all its mirrors above which its publishers wait."""
admission_waiting_max = 1_000
"""Publishes waiting for a mirrored queue to take them above which its publishers are held."""
parting_spans_max = 64
"""Ranges of seqs that a new master with a loss names as missing; more become fewer and wider."""
salvage_queues_max = 4
"""Queues of which a node salvages what only it has at the same time."""
salvage_slice_bytes = 256 * 1024
"""Bytes of messages that are read to be salvaged before those before them have arrived, of each queue."""
stray_copy_us = 600_000_000
"""How long the log of a copy stays after the last view that named this node."""
move_us_max = 600_000_000
"""How long moving a master may take, the synchronisation of the new one included."""
mirror_notes_max = 10
"""Queues named in the log when the same happens to many in one pass; the others are counted."""
mirror_views_per_pass = 40
"""Views entered in one pass: one to two milliseconds."""
mirror_promotion_views = 5
"""As how many of them one counts that makes this node a master: it makes a queue, too."""
recovery_wait_us = 30_000_000
"""How long a queue waits for members that were not restarted before a restarted one takes over."""

# --- bulk protocol ---
bulk_slice_bytes = 640 * 1024
"""Bytes read from disk at once for a client that reads records in bulk: a turn of the loop takes a quarter of
a millisecond, and 1.3 at most; with 1 MiB it was 2."""
bulk_call_bytes_max = 1024 * 1024
"""Largest call of a client of the bulk protocol."""
bulk_login_bytes_max = 16 * 1024
"""Largest frame of a client that has not logged in."""
bulk_calls_waiting_max = 64
"""Calls of one connection that wait for the one before them; then it is read no further."""
bulk_fields_max = 64
"""Arguments of one call."""
bulk_part_bytes = 8 * 1024 * 1024
"""Bytes of one frame of records: a larger batch takes several."""
bulk_relay_bytes = 1024 * 1024
"""Bytes of records that a node fetches at once from another one for a client that cannot reach it."""
bulk_relay_row_bytes = 256 * 1024
"""Bytes of them in one row of the answer."""
assert bulk_relay_row_bytes < inquiry_row_bytes_max
assert 2 * browse_body_bytes_max <= inquiry_row_bytes_max, "it fits in a row with its headers"
bulk_watched_spans_max = 65_536
"""Runs of messages that a read of removals notes as gone, 16 bytes each, to know when it has seen all."""
bulk_watched_steps = 5_000
"""Of these looked at for one slice: half a millisecond."""
bulk_digest_rows_max = 1_000_000
"""Rows of one call for digests: 32 MB."""
bulk_rows_per_pass = 100
"""Rows of an export of definitions built in one pass of the loop: about half a millisecond."""
bulk_epochs_max = 1_000
"""Epochs told of one queue."""
bulk_queues_max = 10_000
"""Queues one call may ask about."""
bulk_ping_us = 10_000_000
"""A client that has said nothing for this long is asked whether it is there."""
bulk_idle_us = 1_800_000_000
"""A client that has said and taken nothing for this long is sent away."""
cursor_queues_per_step = 200
"""Queues looked at for cursors in one pass: half a millisecond."""
bulk_query_bytes_max = 1024
"""Length of the text by which a query tells people what it is."""

# --- spark ---
spark_removals_max = 16 * 1024 * 1024
"""Runs of removed messages that a task of Spark holds, 24 bytes each, to tell the states of its messages."""

# --- web UI ---
http_sessions_max = 1_000
"""Log-ins of the web UI at a node; the one that was not used for longest goes first."""
http_sessions_of_user_max = 50
"""Of them, of one user."""
http_session_idle_s = 3_600
"""A log-in that is not used for so long has ended."""
http_session_s = 12 * 3_600
"""A log-in ends after so long, used or not."""
http_viewers_max = 100
"""Open streams of live data; one more gets 503."""
http_viewers_of_user_max = 50
"""Of them, of one user."""
http_stream_topics_max = 6
"""Resources one stream may follow."""
http_stream_topic_chars_max = 2_000
"""Longest path of such a resource, with its query."""
http_stream_bytes_max = 1024 * 1024
"""Longest answer that is sent over a stream; a viewer holds at most one of each resource."""
http_stream_ms = 2_000
"""How often what a viewer sees is built anew; one snapshot serves all who see the same."""
http_stream_busy_ms = 300
"""How often the progress of a synchronisation is told."""
http_stream_quick_ms = 100
"""How soon a change of a view is seen."""
http_stream_share = 20
"""Building snapshots takes at most one part in so many of the loop's time: whatever takes longer is built
less often.
"""
http_stream_slowest_ms = 15_000
"""However costly, it is built as often."""
http_stream_idle_s = 15
"""A stream on which nothing changes says so as often, and looks whether its session has ended."""
http_stream_stalled_s = 20
"""A viewer that takes nothing for so long is given up."""

# --- rebalancing and maintenance ---
balance_slice_queues = 100
"""Queues looked at in one pass when masters are to be moved: about a millisecond."""
balance_moves_max = 8
"""Masters that one rebalancing, or one node in maintenance, moves at a time."""
balance_copies_max = 1
"""Of those, queues without a mirror, which are copied first."""
assert balance_copies_max <= balance_moves_max < mirror_proposals_max
balance_copy_bytes_per_second = 64 * 1024 * 1024
"""How fast such a queue is copied, so that moving disturbs those that work."""
balance_depths_per_row = 500
"""Queues whose lengths are told in one row."""
balance_start_us = 120_000_000
"""How long `cluster_rebalance = run` waits after a start for all nodes to be there."""
balance_problems_max = 20
"""Queues that could not be moved that are named; the others are counted."""
drain_again_us = 5_000_000
"""After this time a node in maintenance tries again to give a queue away that nobody could take."""
