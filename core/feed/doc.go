// Package feed keeps the view of one worker rank's KV cache exact, or says why it is not.
//
// A feed subscribes to one engine publisher and applies its batches to a Sink: each once, in the order of the sequence
// numbers. Live messages get lost (a slow reader, a reconnect), so every batch that is missing is asked for at the
// engine's replay socket, and a batch is applied only after all before it, or after the view was emptied. Emptying is
// the answer to everything unknown: the view may then claim too little, and never claims what the worker lost.
//
// States (Status.State), and what each promises about the rank's blocks in the index:
//
//	disconnected  no subscription. The view is as it was.
//	recovering    a hole is being filled or a reconnect checked. The view is as it was before the hole; live batches wait.
//	exact         every batch the engine ever sent, up to LastSeq, was applied. (What the index refused or the feed
//	              filtered is in Counters.)
//	partial       the reason says what is missing. The view holds only what was learnt since. Exact again after a
//	              full restore: an engine restart seen from 0, or a replay from 0.
//
// Moves: disconnected -> recovering when subscribed (without a replay endpoint: partial, and exact if batch 0 is seen);
// recovering -> exact or partial when the hole is filled or given up; exact or partial -> recovering at a gap; any ->
// disconnected. The rules, all in machine.go, which does no I/O:
//
//   - Join: as soon as the subscription is up, ask from 0. If the first answer is not 0, history is gone: partial.
//   - Gap: ask from the first missing number. A replay is checked like the live stream: what follows a hole in it
//     waits, and the hole is asked for again, after a back-off, a bounded number of times. A replay that stops without
//     its end marker times out and counts as a failure even if it helped. A replay that begins behind the hole is asked for
//     only once more: the engine has nothing older, and all holes before its oldest batch are given up with it. When the retries are spent, everything learnt
//     before the hole is dropped and later batches apply. If the socket did not answer at all, a replay from 0 is tried
//     again later, ever more rarely, while live batches apply.
//   - Restart: a number that goes back, or one already applied whose bytes differ, is another engine process. Drop
//     everything; start at 0.
//   - Reconnect: the engine may have restarted and overtaken us unnoticed. The last batches applied are asked for again
//     (window of them) and compared by fingerprint. Equal: nothing but what was missed is applied. Different, or the
//     engine no longer has the last one: a restart. Too old to compare: drop everything, partial. If replayed and
//     live batches were mixed just before the connection broke (a hole filled or given up), the new process may have
//     given some: drop everything, ask from 0. Without a replay endpoint nothing can be compared: drop everything, partial.
//   - Resume: a feed may be told where another one of its rank stopped (Position, from Freeze). Its first connection is
//     then like a reconnect.
//   - Lend: a view may be given to a feed that knows nothing yet. It answers until the feed has its own; nothing of it is kept.
//   - Probe: a publisher that loses its last message and falls silent is found by asking for last+1, soon after the silence
//     begins and then ever more rarely.
//   - Local indexer (Config.Query): asked instead of the replay socket. A gap and a reconnect are answered with the events since, or with the
//     rank's whole state if they are no longer kept; a join, and whatever else cannot be filled, asks for the
//     whole state, which replaces the view whatever number it is of. So a rank with one is exact however late the router came;
//     partial only while it does not answer. Answers carry the number of the process: events of another one are never
//     added to what was applied. Live batches carry none: so events are asked for from the first live batch on that was applied since the
//     last answer (of the last 64), and compared with them. What differs, or cannot be compared, is replaced by the whole state.
//   - Replacement: a whole state, of an indexer or by a replay from 0 that ends partial, is applied out of sight of those who ask, and then takes
//     the place of the view at once, if the Sink can have two (Replacer).
//   - Stream (Config.Stream): a publisher of an event plane takes the place of the engine, and whoever answers for it that of a local indexer.
//     Its messages carry events by themselves, so that they are numbered as answers are and need not be compared with them.
//   - Undecodable: a stored event leaves the rank partial; a removal, or a batch, also drops everything learnt before.
//     Unknown tags are ignored. A batch of another rank is ignored. All are counted.
//
// Limits: waiting batches are bounded in number and bytes (the newest is not kept and is asked for later); each request
// uses one connection, one at a time, for a minute at most; feeds that share a Limiter read so many answers at a time, and so many bytes of indexers' answers, and a
// peer that says nothing takes no turn; an indexer's answer has to come at a MiB a second; retries and time without news are bounded. A panic while applying is
// counted, the view dropped and a replay from 0 asked; if the same batch panics again, it counts as undecodable.
//
// Goroutines: one that owns the feed, one of the subscriber, one for a replay while it runs; all end with Close. The
// Sink is called from the owner only.
package feed
