package publisher_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Proves API-032, API-034.
func TestIdenticalEnvelopesOfARequestAreOneRow(t *testing.T) {
	r := start(t)
	kit := testkit.New(20)
	group := kit.Group()
	a, b := kit.GroupMessage(group, 10), kit.GroupMessage(group, 10)
	heard := r.listen()
	metas := r.publish(a, b, a, a, b)
	for i, same := range []int{0, 1, 0, 0, 1} {
		require.True(t, proto.Equal(metas[same], metas[i]), "place %d", i)
	}
	require.Less(t, metas[0].GetCursor().GetSequenceId(), metas[1].GetCursor().GetSequenceId())
	require.Equal(t, 2, r.rows())
	first, second := receive(t, heard, "a notice"), receive(t, heard, "another")
	require.Zero(t, first.Previous)
	require.Equal(t, first.SequenceID, second.Previous)
	require.Empty(t, heard)
}

// Key packages and updates are judged by time and state; a copy that is stored
// already is a success all the same.
//
// Proves API-033, API-035.
func TestADuplicateIsNotValidatedAgain(t *testing.T) {
	var mu sync.Mutex
	now := time.Now()
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	r := start(t, withClock(clock))
	kit := testkit.New(21)
	client := kit.Client()
	registration, keyPackage := client.Registration(now), client.KeyPackage(now)
	late := client.KeyPackage(now.Add(-time.Second))
	want := r.publish(registration, keyPackage)
	mu.Lock()
	now = now.Add(10 * 365 * 24 * time.Hour)
	mu.Unlock()
	got := r.publish(keyPackage, registration)
	require.True(t, proto.Equal(want[1], got[0]))
	require.True(t, proto.Equal(want[0], got[1]), "a second registration is invalid, a copy is not")
	_, err := r.try(keyPackage, late)
	requireRefused(t, err, codes.InvalidArgument, badKeyPackage, 1)
	_, err = r.try(keyPackage, &backendv1.ClientEnvelope{}, late)
	requireRefused(t, err, codes.InvalidArgument, malformed, 1)
	_, err = r.try(keyPackage, late, &backendv1.ClientEnvelope{})
	requireRefused(t, err, codes.InvalidArgument, badKeyPackage, 1)
	require.Equal(t, 2, r.rows())
}

// One envelope is published from 32 connections at once, alone and mixed with
// others good and bad: one row, one metadata (I4, API-036).
//
// Proves API-035, API-036, I4.
func TestConcurrentCopiesAreOneRow(t *testing.T) {
	r := start(t)
	second := startOn(t, r.primary, r.nats) // another process in the same database
	kit := testkit.New(22)
	for round := range 5 {
		client := kit.Client()
		shared := []*backendv1.ClientEnvelope{
			kit.GroupMessage(kit.Group(), 100), client.Registration(time.Now()), client.KeyPackage(time.Now()),
		}
		for _, envelope := range shared {
			copies := make([][]*backendv1.ClientEnvelope, 32)
			fails := make([]bool, len(copies))
			at := make([]int, len(copies))
			for i := range copies {
				switch i % 4 {
				case 0:
					copies[i] = []*backendv1.ClientEnvelope{envelope}
				case 1:
					copies[i], at[i] = []*backendv1.ClientEnvelope{kit.GroupMessage(kit.Group(), 10), envelope, envelope}, 1
				case 2:
					copies[i], at[i] = []*backendv1.ClientEnvelope{kit.Client().Registration(time.Now()), envelope}, 1
				case 3:
					copies[i], fails[i] = []*backendv1.ClientEnvelope{envelope, kit.Broken(time.Now())[5].Envelope}, true
				}
			}
			metas, errs := make([]*backendv1.EnvelopeMeta, len(copies)), make([]error, len(copies))
			var callers sync.WaitGroup
			for i := range copies {
				to := r
				if i%8 >= 4 {
					to = second
				}
				client := backendv1.NewPublishServiceClient(dial(t, to.address))
				callers.Go(func() {
					response, err := client.Publish(t.Context(), &backendv1.PublishRequest{Envelopes: copies[i]})
					if errs[i] = err; err == nil {
						metas[i] = response.GetEnvelopeMetas()[at[i]]
					}
				})
			}
			callers.Wait()
			for i := range metas {
				if fails[i] {
					requireRefused(t, errs[i], codes.InvalidArgument, badKeyPackage, 1)
				} else {
					require.NoError(t, errs[i], "round %d, caller %d", round, i)
					require.True(t, proto.Equal(metas[0], metas[i]))
				}
			}
			var rows int
			require.NoError(t, r.db.QueryRow(t.Context(), "SELECT count(*) FROM envelopes WHERE message_hash = $1",
				metas[0].GetMessageHash().GetSha256()).Scan(&rows))
			require.Equal(t, 1, rows)
		}
	}
}
