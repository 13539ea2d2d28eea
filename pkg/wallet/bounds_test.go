package wallet

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

// Edge case 121 (docs/validation.md#edge-cases).
func TestOnlyExplicitBlocksAreRemembered(t *testing.T) {
	c := startChain(t, contracts(t, common.Address{}))
	v := c.verifier(t)
	block := c.newest(t)
	for address, want := range map[common.Address]bool{always: true, otherWord: false} {
		for range 2 {
			valid, err := v.VerifyAt(t.Context(), accountID(address), block, [32]byte{}, make([]byte, 65))
			require.NoError(t, err)
			require.Equal(t, want, valid)
		}
		require.Len(t, c.takeCalls(), 1, "both verdicts are remembered")
		for range 2 {
			verdict, err := verifyNewest(t.Context(), v, address, [32]byte{}, make([]byte, 65))
			require.NoError(t, err)
			require.Equal(t, want, verdict.Valid)
		}
		require.Len(t, c.takeCalls(), 4, "a block number and a call, twice")
	}
}

func TestEachPartOfTheQuestionCounts(t *testing.T) {
	q := func(chain string, signer byte, block uint64, hash byte, signature string) question {
		return questionOf(chain, common.Address{signer}, block, [32]byte{hash}, []byte(signature))
	}
	seen := map[question]bool{}
	for _, each := range []question{
		q("eip155:1", 1, 1, 1, "signature"),
		q("eip155:10", 1, 1, 1, "signature"),
		q("eip155:1", 2, 1, 1, "signature"),
		q("eip155:1", 1, 2, 1, "signature"),
		q("eip155:1", 1, 1, 2, "signature"),
		q("eip155:1", 1, 1, 1, "signaturf"),
		q("eip155:1", 1, 1, 1, "signature\x00"),
		q("eip155:1", 1, 1, 1, ""),
	} {
		require.False(t, seen[each])
		seen[each] = true
	}
	require.True(t, seen[q("eip155:1", 1, 1, 1, "signature")], "the same question again")
}

// The cache at its bound and one past it.
func TestCacheForgetsTheLeastRecentlyUsed(t *testing.T) {
	const entries = 3
	c := startChain(t, contracts(t, common.Address{}))
	v := c.verifier(t, func(cfg *Config) { cfg.CacheEntries = entries })
	ask := func(hash byte) int {
		valid, err := v.VerifyAt(t.Context(), accountID(always), 0, [32]byte{hash}, make([]byte, 65))
		require.NoError(t, err)
		require.True(t, valid)
		return len(c.takeCalls())
	}
	for hash := range byte(entries) {
		require.Equal(t, 1, ask(hash))
	}
	for hash := range byte(entries) {
		require.Equal(t, 0, ask(hash), "all fit")
	}
	require.Equal(t, 1, ask(entries), "one past the bound")
	require.Equal(t, entries, v.cache.verdicts.Len())
	require.Equal(t, 0, ask(2))
	require.Equal(t, 0, ask(1))
	require.Equal(t, 1, ask(0), "the least recently used had to go")
	require.Equal(t, entries, v.cache.verdicts.Len())
}

func TestErrorsAreNotRemembered(t *testing.T) {
	c := startChain(t, contracts(t, common.Address{}))
	v := c.verifier(t)
	ask := func() (bool, error) {
		return v.VerifyAt(t.Context(), accountID(always), 0, [32]byte{}, make([]byte, 65))
	}
	c.misbehave(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	_, err := ask()
	requireUnavailable(t, err, "HTTP status 502")
	c.misbehave(nil)
	valid, err := ask()
	require.NoError(t, err)
	require.True(t, valid)
}

// MaxCalls verifications run at once; one more waits, and gets the first free
// place or learns that there was none.
func TestCallsInFlightAreBounded(t *testing.T) {
	const bound = 3
	arrived, proceed := make(chan struct{}, 10), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice that the client is gone
		arrived <- struct{}{}
		select {
		case <-proceed:
		case <-r.Context().Done():
		}
		answering(http.StatusOK, `{"jsonrpc":"2.0","id":1,"result":"0x01"}`)(w, r)
	}))
	t.Cleanup(server.Close)
	v := newVerifier(t, server.URL, func(cfg *Config) { cfg.MaxCalls = bound })
	hashes := byte(0)
	var running sync.WaitGroup
	start := func() {
		hash := [32]byte{hashes}
		hashes++
		running.Go(func() {
			valid, err := v.VerifyAt(t.Context(), accountID(always), 1, hash, make([]byte, 65))
			if err != nil || !valid {
				t.Errorf("valid %t, error %v", valid, err)
			}
		})
	}
	for range bound {
		start()
	}
	for range bound {
		<-arrived
	}
	// All places are taken. One more with little patience gets none.
	impatient, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := v.VerifyAt(impatient, accountID(always), 1, [32]byte{0xff}, make([]byte, 65))
	require.Equal(t, fault.Late, fault.KindOf(err))
	require.Empty(t, arrived, "it must not reach the endpoint")

	// One more with patience gets the first free place.
	start()
	proceed <- struct{}{}
	<-arrived
	close(proceed)
	running.Wait()
}

func TestBusyChainIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newChain(testChain, "http://127.0.0.1:1", time.Second, 2, http.DefaultTransport)
		require.NoError(t, err)
		c.places <- struct{}{}
		c.places <- struct{}{}
		_, _, err = c.run(t.Context(), nil, nil)
		requireUnavailable(t, err, "all 2 places stayed taken for 1s")
	})
}

// The same question at the same time is asked once.
func TestConcurrentQuestionsShareAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newCache(1)
		require.NoError(t, err)
		release := make(chan struct{})
		asked := 0
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				valid, err := c.answer(t.Context(), question{1}, func() (bool, error) {
					asked++
					<-release
					return true, nil
				})
				if err != nil || !valid {
					t.Errorf("valid %t, error %v", valid, err)
				}
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		require.Equal(t, 1, asked)
		require.Empty(t, c.asking)
	})
}

// Those who wait share a failure of the chain, but not that the one who asked
// went away: then one of them asks.
func TestWaitersOutliveTheOneWhoAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newCache(1)
		require.NoError(t, err)
		leaving, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			_, err := c.answer(leaving, question{1}, func() (bool, error) {
				<-leaving.Done()
				return false, fault.Of(leaving.Err())
			})
			if fault.KindOf(err) != fault.Cancelled {
				t.Errorf("error %v", err)
			}
		})
		synctest.Wait()
		away, goAway := context.WithCancel(t.Context())
		all.Go(func() {
			_, err := c.answer(away, question{1}, nil)
			if fault.KindOf(err) != fault.Cancelled {
				t.Errorf("error %v", err)
			}
		})
		all.Go(func() {
			valid, err := c.answer(t.Context(), question{1}, func() (bool, error) { return true, nil })
			if err != nil || !valid {
				t.Errorf("valid %t, error %v", valid, err)
			}
		})
		synctest.Wait()
		goAway()
		synctest.Wait()
		leave()
		all.Wait()
	})
}

func TestWaitersShareAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newCache(1)
		require.NoError(t, err)
		release := make(chan struct{})
		asked := 0
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				_, err := c.answer(t.Context(), question{1}, func() (bool, error) {
					asked++
					<-release
					return false, fault.Errorf(fault.Unavailable, "away")
				})
				if fault.KindOf(err) != fault.Unavailable {
					t.Errorf("error %v", err)
				}
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		require.Equal(t, 1, asked)
		require.Zero(t, c.verdicts.Len())
	})
}
