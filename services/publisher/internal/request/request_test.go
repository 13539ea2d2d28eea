package request_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

// What a request is told to hold takes no memory before it is seen to hold it.
func TestEnvelopesThatAreNoneTakeNoMemory(t *testing.T) {
	limits := limit.Default()
	wire := bytes.Repeat([]byte{0x0a, 0x00}, int(limits.MaxRequestBytes)/2) // empty envelopes
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, failed, err := request.Parse(t.Context(), wire, limits, budget.New(64<<20, 0))
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Equal(t, fault.MalformedPayload, failed.Reason)
	require.Zero(t, failed.Index)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// The response has an entry for each place of the request, also of a copy.
func TestCopiesCountInTheResponse(t *testing.T) {
	kit := testkit.New(1)
	group := kit.Group()
	a, b := kit.GroupMessage(group, 1), kit.GroupMessage(group, 1)
	wire, err := proto.Marshal(&backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{a, b, a, a}})
	require.NoError(t, err)
	least := func(limits limit.Config) error {
		_, failed, err := request.Parse(t.Context(), wire, limits, budget.New(64<<20, 0))
		require.Nil(t, failed)
		return err
	}
	limits := limit.Default()
	require.NoError(t, least(limits))
	for limits.MaxResponseBytes = 1; least(limits) != nil; limits.MaxResponseBytes++ {
		require.Equal(t, fault.TooLong, fault.KindOf(least(limits)))
	}
	entries := limits.MaxResponseBytes // of four, the least they can have
	wire, err = proto.Marshal(&backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{a, b}})
	require.NoError(t, err)
	limits.MaxResponseBytes = entries / 2
	require.NoError(t, least(limits))
	limits.MaxResponseBytes--
	require.Error(t, least(limits))
}

// Proves API-036.
func TestPlacesAreKept(t *testing.T) {
	kit := testkit.New(2)
	group := kit.Group()
	a, b, c := kit.GroupMessage(group, 1), kit.GroupMessage(group, 1), kit.GroupMessage(group, 1)
	wire, err := proto.Marshal(&backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{a, b, a, c, b}})
	require.NoError(t, err)
	r, failed, err := request.Parse(t.Context(), wire, limit.Default(), budget.New(64<<20, 0))
	require.NoError(t, err)
	require.Nil(t, failed)
	require.Equal(t, 5, r.Count())
	var first []int
	for i := range r.Envelopes {
		first = append(first, r.Envelopes[i].Index)
	}
	require.Equal(t, []int{0, 1, 3}, first)
}

func TestALastingPayloadKeepsNoLongRequest(t *testing.T) {
	kit := testkit.New(3)
	group := kit.Group()
	short, long := kit.GroupMessage(group, 100), kit.GroupMessage(group, 100_000)
	for _, c := range []struct {
		envelopes []*backendv1.ClientEnvelope
		copied    []bool
	}{
		{[]*backendv1.ClientEnvelope{short}, []bool{false}},
		{[]*backendv1.ClientEnvelope{long}, []bool{false}},
		{[]*backendv1.ClientEnvelope{short, long}, []bool{true, false}},
	} {
		wire, err := proto.Marshal(&backendv1.PublishRequest{Envelopes: c.envelopes})
		require.NoError(t, err)
		r, failed, err := request.Parse(t.Context(), wire, limit.Default(), budget.New(64<<20, 0))
		require.NoError(t, err)
		require.Nil(t, failed)
		for i := range r.Envelopes {
			canonical := r.Envelopes[i].Canonical
			lasting := r.Lasting(canonical)
			require.Equal(t, canonical, lasting)
			require.Equal(t, c.copied[i], &canonical[0] != &lasting[0])
		}
	}
}
