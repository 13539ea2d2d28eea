package request_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

func encode(t *testing.T, envelopes ...*backendv1.ClientEnvelope) []byte {
	t.Helper()
	encoded, err := proto.Marshal(&backendv1.PublishRequest{Envelopes: envelopes})
	require.NoError(t, err)
	return encoded
}

func appendRaw(to []byte, envelopes ...[]byte) []byte {
	for _, one := range envelopes {
		to = protowire.AppendBytes(protowire.AppendTag(to, 1, protowire.BytesType), one)
	}
	return to
}

func TestALookSaysWhatARequestTakes(t *testing.T) {
	kit, now := testkit.New(20), time.Now()
	client, group := kit.Client(), kit.Group()
	message, pack, update := kit.GroupMessage(group, 1), client.KeyPackage(now), client.Registration(now)
	type look struct {
		envelopes, checked int
		identity, hopeless bool
	}
	for name, c := range map[string]struct {
		encoded []byte
		want    look
	}{
		"nothing":         {nil, look{}},
		"messages":        {encode(t, message, kit.Commit(group, 1), kit.Welcome(make([]byte, 32), 1)), look{envelopes: 3}},
		"a key package":   {encode(t, message, pack), look{envelopes: 2, checked: 1}},
		"an update":       {encode(t, update, message, pack), look{envelopes: 3, checked: 2, identity: true}},
		"a short one":     {appendRaw(encode(t, message, update), make([]byte, 15), make([]byte, 15)), look{envelopes: 3, checked: 1, identity: true, hopeless: true}},
		"just not short":  {appendRaw(encode(t, message), bytes.Repeat([]byte{0x50, 1}, 8)), look{envelopes: 2}},
		"empty ones only": {appendRaw(nil, nil, nil), look{envelopes: 1, hopeless: true}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := request.Look(c.encoded, limit.Default())
			require.NoError(t, err)
			require.Equal(t, c.want, look{o.Envelopes, o.Checked, o.Identity, o.Hopeless})
			require.Equal(t, len(c.encoded), o.Wire)
		})
	}
	_, err := request.Look(appendRaw(nil, nil, nil)[:3], limit.Default())
	require.Equal(t, fault.MalformedPayload, fault.Of(err).Reason)
}

// What a response has no room for is refused before anything is parsed: at the least
// length of an entry exactly, and one past it.
func TestALookRefusesWhatNoResponseHasRoomFor(t *testing.T) {
	const n = 1000
	least := uint64(proto.Size(&backendv1.PublishResponse{EnvelopeMetas: []*backendv1.EnvelopeMeta{{
		Topic: &backendv1.Topic{Topic: make([]byte, 17)}, Cursor: &backendv1.Cursor{SequenceId: 1}, MessageHash: &backendv1.MessageHash{Hash: &backendv1.MessageHash_Sha256{Sha256: make([]byte, 32)}},
	}}}))
	encoded := appendRaw(nil, bytes.Split(bytes.Repeat([]byte("................,"), n), []byte(","))[:n]...)
	limits := limit.Default()
	refused := func(most uint64) error {
		limits.MaxResponseBytes = most
		_, err := request.Look(encoded, limits)
		return err
	}
	require.NoError(t, refused(n*least))
	require.Equal(t, fault.TooLong, fault.KindOf(refused(n*least-1)))
}

func TestFindingsAreAdopted(t *testing.T) {
	kit, now := testkit.New(21), time.Now()
	client := kit.Client()
	message, pack, update := kit.GroupMessage(kit.Group(), 1), client.KeyPackage(now), client.Registration(now)
	o, err := request.Look(encode(t, message, message, pack, update, message, pack, client.KeyPackage(now.Add(time.Hour))), limit.Default())
	require.NoError(t, err)
	checked, failed := o.ParseChecked(t.Context(), limit.Default(), budget.New(64<<20, 0))
	require.Nil(t, failed)
	require.True(t, checked.Identity)
	require.Len(t, checked.Envelopes, 3, "only what has to be checked is held")
	bad := fault.Invalidf(fault.InvalidKeyPackage, "bad")
	checked.Era, checked.Envelopes[0].Failure, checked.Envelopes[1].Update = 3, bad, &request.Update{Version: 7}
	r, failed, err := o.Parse(t.Context(), limit.Default(), budget.New(64<<20, 0))
	require.NoError(t, err)
	require.Nil(t, failed)
	r.Adopt(checked)
	require.EqualValues(t, 3, r.Era)
	require.Len(t, r.Envelopes, 4)
	for i := range r.Envelopes {
		switch e := &r.Envelopes[i]; e.Index {
		case 2:
			require.Equal(t, bad, e.Failure)
		case 3:
			require.EqualValues(t, 7, e.Update.Version)
		default:
			require.Nil(t, e.Failure)
			require.Nil(t, e.Update)
		}
	}
}

// An envelope that fails is found among those that are dropped, too.
func TestWhatIsDroppedIsParsed(t *testing.T) {
	kit := testkit.New(22)
	update := kit.Client().Registration(time.Now())
	encoded := appendRaw(encode(t, update, kit.GroupMessage(kit.Group(), 1)), bytes.Repeat([]byte{0x50, 1}, 8))
	o, err := request.Look(encoded, limit.Default())
	require.NoError(t, err)
	r, failed := o.ParseChecked(t.Context(), limit.Default(), budget.New(64<<20, 0))
	require.Equal(t, 2, failed.Index)
	require.Len(t, r.Envelopes, 1)
}
