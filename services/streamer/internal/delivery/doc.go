// Package delivery decides what every stream receives, and when: each envelope
// above a registration's cursor exactly once and in order, whatever the commit
// notices, the replica and the client do (invariants I5 and I6).
//
// An Engine is a state machine without a clock, goroutines or I/O. Events come
// in as method calls: a notice, a page of history, the heads of topics, an
// update of a stream's topics, a frame handed to the transport, a tick, the
// database lost or found again. Effects come out of TakeEffects: sessions that
// have something to send, pages to fetch, sessions that ended. An Engine is not
// safe for concurrent use.
//
// # Registrations
//
// A registration is one topic on one stream. Its floor is the last sequence id
// admitted to the stream's output, at first the cursor. A topic has a known
// head, the highest sequence id proven to exist. A registration is current when
// its floor has reached the known head.
//
//	            Update adds the topic
//	                     |
//	               registering          heads are read after this, so that
//	                     |              nothing falls between (API-096)
//	        Applied is queued with the target
//	                     |
//	        +------------+-------------+
//	  floor >= known head        floor < known head
//	        |                          |
//	        v   gap, or no room        v     its turn      page   |
//	     current ----------------> behind -----------> fetching --+
//	        ^                        ^   ^                 |      |
//	        |                        |   '-- more to read -+      |
//	        |                        |                            |
//	        |                   sweep tick                        |
//	        |                        |                            |
//	        |                     waiting <-- the page ended below the known
//	        |                        |        head: the replica lags
//	        |                        |
//	        '--- floor has reached the known head, by a page or by kept notices
//
//	removed, from any state: nothing of it is queued any more
//
// A notice with previous <= floor < sequence id proves that nothing lies
// between: a current registration takes it at once, without a read. Any other
// notice above the floor raises the known head. While some registration of a
// topic is not current, the topic keeps its notices, so that the registration
// can leave the database as soon as it reaches the previous of one of them: with
// a replica that lags, it would never catch up with steady traffic otherwise.
//
// # Turns
//
// Sessions take turns at the database, and so do the registrations within a
// session: no registration gets a second frame of history before each other one
// that is behind had its turn. Registrations that ask for the same topic and
// position share one read, so that an envelope too long for a notice is read
// once whatever the fan-out.
//
// # Output
//
// A session's output has three lanes. Control (Started, Ping, Pong, Keepalive)
// goes first. Then what is live, with Applied in between, in the order in which
// it was queued; then history, which gets its turn after a few frames of the
// others, too. So a current registration never waits for another's history. What
// is live of a registration whose history is still queued goes behind it, and
// the Applied of a removal goes behind everything.
//
// A transport has two frames at most that it has not written: more would wait there
// for a client that reads nothing, where neither order nor bounds can be kept. They
// count as output until they are written, also when the stream has ended meanwhile.
// A short envelope counts in each output, since each frame gets a copy; a long one
// is shared and counts once.
//
// When the output is full, nothing is admitted: registrations with something new
// are behind from then on and read it from the database when there is room. A
// session ends as a slow client only when its output stayed full while the
// transport took no byte for a configured time.
//
// # Memory
//
// Three budgets hold what clients make the engine keep: output (pages on their way
// included), notices, and registrations. What one session may have of the first is a
// part of what is free, so that some always is, and a quarter is for those that hold
// little: whoever does not read is in nobody's way. Who is refused of the last ends.
package delivery
