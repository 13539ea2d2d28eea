package publisher_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

const (
	unspecified     = backendv1.PublishError_REASON_UNSPECIFIED
	malformed       = backendv1.PublishError_REASON_MALFORMED_PAYLOAD
	badKeyPackage   = backendv1.PublishError_REASON_INVALID_KEY_PACKAGE
	badUpdate       = backendv1.PublishError_REASON_INVALID_IDENTITY_UPDATE
	tooLarge        = backendv1.PublishError_REASON_TOO_LARGE
	wholeRequest    = -1
	publishFullName = "/xmtp.backend.v1.PublishService/Publish"
)

// sized returns a group message whose envelope has exactly size bytes.
func sized(t *testing.T, kit *testkit.Kit, size int) *backendv1.ClientEnvelope {
	t.Helper()
	envelope := kit.Welcome(make([]byte, 32), size-200)
	for range 3 { // lengths of lengths
		short := size - proto.Size(envelope)
		v1 := envelope.GetWelcomeMessage().GetV1()
		v1.Data = append(v1.GetData(), make([]byte, max(short, 0))...)
		v1.Data = v1.GetData()[:len(v1.GetData())+min(short, 0)]
	}
	require.Equal(t, size, proto.Size(envelope))
	return envelope
}

// Proves API-031, API-145, I8.
func TestEnvelopesOfTheMaximumSizeAndOneByteMore(t *testing.T) {
	r := start(t)
	kit := testkit.New(2)
	r.publish(sized(t, kit, 1<<20))
	_, err := r.try(kit.GroupMessage(kit.Group(), 10), sized(t, kit, 1<<20+1))
	requireRefused(t, err, codes.InvalidArgument, tooLarge, 1)
	require.Equal(t, 1, r.rows())
}

// raw publishes encoded bytes.
func (r *role) raw(encoded []byte) (*backendv1.PublishResponse, error) {
	r.t.Helper()
	conn := dial(r.t, r.address)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var response rpc.Frame
	err := conn.Invoke(ctx, publishFullName, rpc.FrameOf(encoded), &response, grpc.ForceCodecV2(rpc.Codec{}))
	if err != nil {
		return nil, err
	}
	var decoded backendv1.PublishResponse
	require.NoError(r.t, proto.Unmarshal(response.Take(), &decoded))
	return &decoded, nil
}

// Proves API-031, API-145.
func TestRequestsOfTheMaximumSizeAndOneByteMore(t *testing.T) {
	r := start(t)
	kit := testkit.New(3)
	const most = 25 << 20
	request := &backendv1.PublishRequest{}
	for range 24 {
		request.Envelopes = append(request.Envelopes, sized(t, kit, 1<<20))
	}
	rest := most - proto.Size(request)
	request.Envelopes = append(request.Envelopes, sized(t, kit, rest-4))
	require.Equal(t, most, proto.Size(request))
	encoded, err := proto.Marshal(request)
	require.NoError(t, err)
	response, err := r.raw(encoded)
	require.NoError(t, err)
	require.Len(t, response.GetEnvelopeMetas(), 25)
	require.Equal(t, 25, r.rows())

	// One more byte on the wire, in a field that nobody knows.
	longer := protowire.AppendTag(encoded, 15, protowire.BytesType)
	longer = append(longer, 0)
	require.Len(t, longer, most+2)
	_, err = r.raw(longer)
	requireRefused(t, err, codes.OutOfRange, unspecified, 0)
	_, err = r.raw(longer[:most+1])
	requireRefused(t, err, codes.OutOfRange, unspecified, 0)
}

// Proves API-031, API-145, I8.
func TestTopicsOfARequestAreLimited(t *testing.T) {
	r := start(t)
	kit := testkit.New(4)
	envelopes := make([]*backendv1.ClientEnvelope, 1001)
	for i := range envelopes {
		envelopes[i] = kit.GroupMessage(kit.Group(), 1)
	}
	_, err := r.try(envelopes...)
	requireRefused(t, err, codes.InvalidArgument, tooLarge, wholeRequest)
	require.Zero(t, r.rows())
	r.publish(envelopes[:1000]...)
	// Envelopes are not limited, only topics.
	for i := range envelopes {
		envelopes[i] = kit.Proposal(testkit.Group{1}, uint64(i))
	}
	r.publish(envelopes...)
	require.Equal(t, 2001, r.rows())
}

// Proves API-031.
func TestOneMebibyteOfCanonicalBytesIsWhatCounts(t *testing.T) {
	r := start(t)
	kit := testkit.New(5)
	envelope, err := proto.Marshal(sized(t, kit, 1<<20))
	require.NoError(t, err)
	// Unknown fields are on the wire only.
	envelope = protowire.AppendTag(envelope, 2000, protowire.BytesType)
	envelope = protowire.AppendBytes(envelope, make([]byte, 1000))
	request := protowire.AppendTag(nil, 1, protowire.BytesType)
	request = protowire.AppendBytes(request, envelope)
	_, err = r.raw(request)
	require.NoError(t, err)
	var length int
	require.NoError(t, r.db.QueryRow(t.Context(), "SELECT length(payload) FROM envelopes").Scan(&length))
	require.Equal(t, 1<<20, length)
}

// Proves API-134.
func TestResponsesTooLongAreForeseen(t *testing.T) {
	kit := testkit.New(6)
	group := kit.Group()
	small := func(n int) []*backendv1.ClientEnvelope {
		envelopes := make([]*backendv1.ClientEnvelope, n)
		for i := range envelopes {
			envelopes[i] = kit.Proposal(group, uint64(i))
		}
		return envelopes
	}
	const n = 20
	probe := start(t)
	metas := probe.publish(small(n)...)
	exact := proto.Size(&backendv1.PublishResponse{EnvelopeMetas: metas})
	for _, c := range []struct {
		name string
		most int
		fits bool
	}{{"fits exactly", exact, true}, {"one byte too long", exact - 1, false}, {"far too long", exact / 2, false}} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, withLimits(func(l *limit.Config) {
				l.MaxEnvelopeBytes, l.MaxResponseBytes = 400, uint64(c.most)
			}))
			metas, err := r.try(small(n)...)
			if c.fits {
				require.NoError(t, err)
				require.Len(t, metas, n)
				return
			}
			requireRefused(t, err, codes.OutOfRange, unspecified, 0)
			require.Zero(t, r.rows(), "nothing is stored")
			r.publish(small(2)...)
		})
	}
}

// Proves API-030, API-036, API-047, API-050.
func TestTheLowestFailingIndexIsNamed(t *testing.T) {
	r := start(t)
	kit := testkit.New(7)
	now := time.Now()
	good := func() *backendv1.ClientEnvelope { return kit.GroupMessage(kit.Group(), 10) }
	broken := map[string]*backendv1.ClientEnvelope{}
	for _, b := range kit.Broken(now) {
		broken[b.Name] = b.Envelope
	}
	noPayload, expired, uncreated := broken["no payload"], broken["expired key package"], broken["update of an inbox that does not exist"]
	large := sized(t, kit, 1<<20+1)
	client := kit.Client()
	cases := []struct {
		name      string
		envelopes []*backendv1.ClientEnvelope
		reason    backendv1.PublishError_Reason
		index     int
	}{
		{"malformed first", []*backendv1.ClientEnvelope{noPayload, expired}, malformed, 0},
		{"checked before malformed", []*backendv1.ClientEnvelope{good(), expired, good(), noPayload}, badKeyPackage, 1},
		{"checked after malformed", []*backendv1.ClientEnvelope{good(), noPayload, expired}, malformed, 1},
		{"too large before malformed", []*backendv1.ClientEnvelope{large, noPayload}, tooLarge, 0},
		{"key package before update", []*backendv1.ClientEnvelope{expired, uncreated}, badKeyPackage, 0},
		{"update before key package", []*backendv1.ClientEnvelope{good(), uncreated, expired}, badUpdate, 1},
		{"index of the first copy", []*backendv1.ClientEnvelope{good(), expired, expired}, badKeyPackage, 1},
		{"two updates of an inbox", []*backendv1.ClientEnvelope{
			good(), client.Registration(now), good(), client.Registration(now.Add(1)), noPayload}, badUpdate, 3},
		{"two updates of an inbox behind a failure", []*backendv1.ClientEnvelope{
			expired, client.Registration(now), client.Registration(now.Add(1))}, badKeyPackage, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.try(c.envelopes...)
			requireRefused(t, err, codes.InvalidArgument, c.reason, c.index)
		})
	}
	require.Zero(t, r.rows(), "nothing of a refused request is stored")
}

// Proves API-040, API-042, API-043, API-047.
func TestEveryReasonIsGiven(t *testing.T) {
	r := start(t)
	kit := testkit.New(8)
	for _, b := range kit.Broken(time.Now()) {
		t.Run(b.Name, func(t *testing.T) {
			_, err := r.try(kit.GroupMessage(kit.Group(), 10), b.Envelope)
			requireRefused(t, err, codes.InvalidArgument, backendv1.PublishError_Reason(b.Reason), 1)
		})
	}
	require.Zero(t, r.rows())
}

// Proves API-040.
func TestWhatDoesNotDecode(t *testing.T) {
	r := start(t)
	kit := testkit.New(9)
	good, err := proto.Marshal(&backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{kit.GroupMessage(kit.Group(), 10)}})
	require.NoError(t, err)
	badEnvelope := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte{0xff})
	for _, c := range []struct {
		name    string
		encoded []byte
		index   int
	}{
		{"no protobuf at all", []byte{0xff, 0xff}, wholeRequest},
		{"a list cut short", good[:len(good)-1], wholeRequest},
		{"an envelope that does not decode", append(append([]byte(nil), good...), badEnvelope...), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.raw(c.encoded)
			requireRefused(t, err, codes.InvalidArgument, malformed, c.index)
		})
	}
	require.Zero(t, r.rows())
	t.Run("unknown fields are left out", func(t *testing.T) {
		first, err := r.raw(good)
		require.NoError(t, err)
		second, err := r.raw(append(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1), good...))
		require.NoError(t, err)
		require.True(t, proto.Equal(first, second))
	})
	t.Run("no envelopes", func(t *testing.T) {
		response, err := r.raw(nil)
		require.NoError(t, err)
		require.Empty(t, response.GetEnvelopeMetas())
	})
}

// Proves API-145, API-148.
func TestIdentityHistoryIsLimited(t *testing.T) {
	const most = 3
	r := start(t, withLimits(func(l *limit.Config) { l.MaxIdentityEntries = most }))
	kit := testkit.New(10)
	client, now := kit.Client(), time.Now()
	envelopes := []*backendv1.ClientEnvelope{client.Registration(now)}
	for range most {
		envelope, _ := client.AddInstallation(now)
		envelopes = append(envelopes, envelope)
	}
	for _, envelope := range envelopes[:most] {
		r.publish(envelope)
	}
	_, err := r.try(envelopes[most])
	requireRefused(t, err, codes.InvalidArgument, badUpdate, 0)
	for _, envelope := range envelopes[:most] { // the cap is for new updates only
		r.publish(envelope)
	}
	require.Equal(t, most, r.rows())
}

// Proves API-031, API-032.
func TestManyTinyEnvelopes(t *testing.T) {
	r := start(t)
	kit := testkit.New(11)
	group := kit.Group()
	envelopes := make([]*backendv1.ClientEnvelope, 20_000)
	for i := range envelopes {
		envelopes[i] = kit.GroupMessage(group, 1)
		envelopes[i].GetGroupMessage().SenderHmac = []byte(fmt.Sprint(i))
	}
	metas := r.publish(envelopes...)
	for i := 1; i < len(metas); i++ {
		require.Less(t, metas[i-1].GetCursor().GetSequenceId(), metas[i].GetCursor().GetSequenceId())
	}
	require.Equal(t, len(envelopes), r.rows())
}
