// Package publisher is the role that stores envelopes: it serves Publish
// (API-030 to API-060) and announces what it stored.
//
// # From a request to its rows
//
// Four packages share the work, and this is their contract.
//
// An attempt ([Publisher.attempt]) validates a request without any lock and hands it to
// the group commit. What validation found about an identity update holds for one era of
// [store.Publisher]: one server, from when a connection first led to it until one led to
// another, or to the same after a restart. The request carries the era in which its
// validation began.
//
// Package groupcommit puts requests into groups. It repeats a group's requests in two
// cases: when a wait for a lock was lost, and, each alone, when a neighbour may have
// failed them. In both the server is the same. Any other failure goes back to the caller:
// if the database was lost, or is another one ([store.IsAway]), the request is attempted
// again from its validation, within its deadline.
//
// [store.Publisher.Commit] runs the transaction of a group, in one of two ways:
//
//   - Nothing that it may find speaks against any draft ([store.Batch].Certain): one
//     statement stores all of them, unless one is stored already or another process is
//     at work on a topic.
//   - Otherwise, and after that: it takes the locks, reads heads, copies and new ids, asks
//     for a verdict, and stores what that says.
//
// Either way the store gives the ids, in the order of the drafts that are stored, and
// returns for each draft its metadata, whether it is new, and the head of its topic just
// before: [store.Locked.Settle] makes both from what the transaction found.
//
// Package judge decides and is told. Decide gives the verdict while the locks are held:
// which drafts to store, and which requests are refused and why. It refuses a request
// whose findings are of another era, or which saw an identity update stored that is not
// there, as outdated: nothing of it is stored, and it is attempted again. Tell takes the
// outcome of the committed transaction, gives each request that was not refused its
// metadata, and returns the commit notices. Decide may not have been asked before.
package publisher
