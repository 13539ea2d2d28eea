package wallet

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// question identifies what was asked, at an explicit block: a digest, so that
// entries have a fixed size however long the signature is.
type question [sha256.Size]byte

// questionOf length-prefixes what has no fixed length. Two spellings of an
// address are the same question.
func questionOf(chainID string, signer common.Address, block uint64, hash [32]byte, signature []byte) question {
	digest := sha256.New()
	var number [8]byte
	writeNumber := func(n uint64) {
		binary.BigEndian.PutUint64(number[:], n)
		digest.Write(number[:])
	}
	writeNumber(uint64(len(chainID)))
	digest.Write([]byte(chainID))
	digest.Write(signer[:])
	writeNumber(block)
	digest.Write(hash[:])
	writeNumber(uint64(len(signature)))
	digest.Write(signature)
	return question(digest.Sum(nil))
}

// cache remembers verdicts, both kinds, and lets those who ask the same at the
// same time share one answer. Errors are never remembered. It starts no
// goroutine: whoever asks first finds out, in its own call.
type cache struct {
	mu       sync.Mutex
	verdicts *simplelru.LRU[question, bool]
	asking   map[question]*inquiry
}

// inquiry is a question somebody is finding the answer to. The other fields are
// written before done is closed and read after.
type inquiry struct {
	done  chan struct{}
	valid bool
	err   error
	// gaveUp is set when whoever asked went away, which says nothing about the
	// chain: one of those who wait asks again.
	gaveUp bool
}

// newCache returns a cache of at most the given number of verdicts, 1 or more.
func newCache(entries int) (*cache, error) {
	verdicts, err := simplelru.NewLRU[question, bool](entries, nil)
	if err != nil {
		return nil, fault.Wrap(fault.Broken, err, "the verdict cache has %d entries, expected at least 1", entries)
	}
	return &cache{verdicts: verdicts, asking: map[question]*inquiry{}}, nil
}

// answer returns the remembered verdict, or waits for the one somebody is asking
// for, or asks.
func (c *cache) answer(ctx context.Context, q question, ask func() (bool, error)) (bool, error) {
	for {
		c.mu.Lock()
		if valid, known := c.verdicts.Get(q); known {
			c.mu.Unlock()
			return valid, nil
		}
		running := c.asking[q]
		if running == nil {
			running = &inquiry{done: make(chan struct{}), gaveUp: true}
			c.asking[q] = running
			c.mu.Unlock()
			return c.find(ctx, q, running, ask)
		}
		c.mu.Unlock()

		select {
		case <-running.done:
			if !running.gaveUp {
				return running.valid, running.err
			}
		case <-ctx.Done():
			return false, fault.Of(ctx.Err())
		}
	}
}

// find asks, and tells those who wait, also when ask panics.
func (c *cache) find(ctx context.Context, q question, own *inquiry, ask func() (bool, error)) (bool, error) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asking, q)
		if own.err == nil && !own.gaveUp {
			c.verdicts.Add(q, own.valid)
		}
		close(own.done)
	}()
	own.valid, own.err = ask()
	own.gaveUp = own.err != nil && ctx.Err() != nil
	return own.valid, own.err
}
