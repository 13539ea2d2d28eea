package identity

import (
	"context"
	"encoding/hex"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// Field numbers of the messages. Request and response share the first two.
const (
	entries         = 1
	entryIdentifier = 1
	entryKind       = 2
	entryInboxID    = 3
)

// entry is one identifier of a request, as the request spelled it.
type entry struct {
	identifier []byte
	kind       int32
	// lookup is the place in the question to the database, or -1: nobody can
	// have such an identifier.
	lookup int
}

// GetInboxIDs resolves identifiers to inboxes (API-120 to API-122): one entry
// per entry, echoed, in order, repeats included.
func (h *Handler) GetInboxIDs(ctx context.Context, request []byte) (*rpc.Frame, error) {
	asked, lookups, err := h.parseLookups(request)
	if err != nil {
		return nil, err
	}
	var found []store.InboxID
	if len(lookups) > 0 {
		err = h.replica.Read(ctx, func(ctx context.Context, pool *store.Pool) (err error) {
			found, err = pool.InboxIDs(ctx, lookups)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if sizeOfLookups(asked, found) > int(h.limits.MaxResponseBytes) {
		return nil, tooLong()
	}
	return rpc.FrameOf(encodeLookups(asked, found)), nil
}

func sizeOfLookups(asked []entry, found []store.InboxID) int {
	size := 0
	for i := range asked {
		size += 1 + protowire.SizeBytes(asked[i].size(found))
	}
	return size
}

func encodeLookups(asked []entry, found []store.InboxID) []byte {
	response := make([]byte, 0, sizeOfLookups(asked, found))
	for i := range asked {
		response = asked[i].append(response, found)
	}
	return response
}

func (h *Handler) parseLookups(request []byte) ([]entry, []store.Identifier, error) {
	count, err := wire.Count(request, entries, h.limits.MaxLookupIdentifiers)
	if err != nil {
		return nil, nil, err
	}
	if count > int(h.limits.MaxLookupIdentifiers) {
		return nil, nil, tooMany("identifiers", h.limits.MaxLookupIdentifiers)
	}
	asked := make([]entry, 0, count)
	lookups := make([]store.Identifier, 0, count)
	m := wire.Read(request)
	for m.Next() {
		if !m.IsBytes(entries) {
			continue
		}
		e, err := parseEntry(m.Bytes())
		if err != nil {
			return nil, nil, err
		}
		kind := associations.IdentifierKind(e.kind)
		if key, ok := association.LookupKey(kind, string(e.identifier)); ok {
			e.lookup = len(lookups)
			lookups = append(lookups, store.Identifier{Kind: storedKind(kind), Key: key})
		}
		asked = append(asked, e)
	}
	return asked, lookups, m.Err()
}

// storedKind is the kind under which the projection keeps an identifier: one
// without a kind is an Ethereum address.
func storedKind(kind associations.IdentifierKind) int16 {
	if kind == associations.IdentifierKind_IDENTIFIER_KIND_UNSPECIFIED {
		kind = associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM
	}
	return int16(kind)
}

func parseEntry(message []byte) (entry, error) {
	e := entry{lookup: -1}
	m := wire.Read(message)
	for m.Next() {
		switch {
		case m.IsBytes(entryIdentifier):
			e.identifier = m.Text()
		case m.IsVarint(entryKind):
			e.kind = int32(m.Varint())
		}
	}
	return e, m.Err()
}

const inboxIDDigits = 64

func (e *entry) inbox(found []store.InboxID) *store.InboxID {
	if e.lookup < 0 || !found[e.lookup].Found {
		return nil
	}
	return &found[e.lookup]
}

// size is that of the encoded response entry, without its tag and length.
func (e *entry) size(found []store.InboxID) int {
	n := 0
	if len(e.identifier) > 0 {
		n += 1 + protowire.SizeBytes(len(e.identifier))
	}
	if e.kind != 0 {
		n += 1 + protowire.SizeVarint(uint64(int64(e.kind)))
	}
	if e.inbox(found) != nil {
		n += 1 + protowire.SizeBytes(inboxIDDigits)
	}
	return n
}

func (e *entry) append(dst []byte, found []store.InboxID) []byte {
	dst = protowire.AppendTag(dst, entries, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(e.size(found)))
	if len(e.identifier) > 0 {
		dst = protowire.AppendTag(dst, entryIdentifier, protowire.BytesType)
		dst = protowire.AppendBytes(dst, e.identifier)
	}
	if e.kind != 0 {
		dst = protowire.AppendTag(dst, entryKind, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(int64(e.kind)))
	}
	if inbox := e.inbox(found); inbox != nil {
		dst = protowire.AppendTag(dst, entryInboxID, protowire.BytesType)
		dst = protowire.AppendVarint(dst, inboxIDDigits)
		dst = hex.AppendEncode(dst, inbox.Bytes[:])
	}
	return dst
}
