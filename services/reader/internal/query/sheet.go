package query

import (
	"context"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

const (
	// onSpec is how many bytes of payloads a page gets room for that is not known,
	// as long as nobody has to wait for it.
	onSpec = 1 << 20
	// smallRoom is for a page that would have to wait for more. What is taken for it
	// is a small amount of the budget, which waits for small ones only.
	smallRoom = 32 << 10
)

// Room is what is taken of the budget for a page of some bytes: themselves, and one
// envelope in the buffer of the database's driver, which may be twice its length.
func Room(bytes int, limits limit.Config) int64 {
	return int64(bytes) + min(int64(bytes), 2*int64(limits.MaxEnvelopeBytes))
}

// sheet is an answer on which rows are written.
type sheet struct {
	*rpc.Answer

	encode func(dst []byte, meta *envelope.Meta, payload int) []byte
	head   []byte
}

func newSheet(rooms rpc.Rooms, encode func([]byte, *envelope.Meta, int) []byte) *sheet {
	return &sheet{Answer: rooms.Answer(), encode: encode}
}

// Add implements store.Sheet. The payload is copied once.
func (s *sheet) Add(meta *envelope.Meta, payload []byte) {
	s.head = s.encode(s.head[:0], meta, len(payload))
	s.Write(s.head)
	s.Write(payload)
}

// read reads a page of at most some rows onto a sheet. How long it is turns out when
// it is read. So room for an ordinary page is taken at once if it is free, else room
// for a small one. A page that needs more is measured by that read; then its room is
// given back and the page waits for what it needs. It never waits with room in hand,
// so that no two pages wait for each other, and it waits behind long pages only if it
// is long itself.
func (h *Handler) read(ctx context.Context, from Database, s *sheet, rows int, read func(context.Context, *store.Pool, int) (store.Page, error)) (store.Page, error) {
	page, err := h.roomy(ctx, from, s, rows, read)
	if err != nil {
		s.Drop()
	}
	return page, err
}

func (h *Handler) roomy(ctx context.Context, from Database, s *sheet, rows int, read func(context.Context, *store.Pool, int) (store.Page, error)) (page store.Page, err error) {
	most := int(h.limits.MaxResponseBytes)
	room := min(rows*limit.EnvelopeOverheadBytes+onSpec, most)
	if !s.TryTake(Room(room, h.limits)) {
		room = min(smallRoom, most)
		err = s.Take(ctx, Room(room, h.limits))
	}
	for err == nil {
		err = from.Read(ctx, func(ctx context.Context, pool *store.Pool) (err error) {
			page, err = read(ctx, pool, room)
			return err
		})
		if err != nil || page.Needs == 0 {
			break
		}
		room = min(page.Needs+page.Needs/8, most) // more may be stored meanwhile
		err = s.Take(ctx, Room(room, h.limits))
	}
	return page, err
}
