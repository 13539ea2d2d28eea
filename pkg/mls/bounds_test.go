package mls

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
)

// errorBytes is what an error may take, whatever the input.
const errorBytes = 2048

// allocated returns the bytes that one call of f allocates, the smallest of a
// few tries: other goroutines may add to each.
func allocated(f func()) uint64 {
	size := uint64(1 << 63)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		size = min(size, after.TotalAlloc-before.TotalAlloc)
	}
	return size
}

// largeKeyPackage is valid, and has as many extensions and capabilities as fit.
const largeKeyPackage = "large key package"

// hostile are inputs that claim more than they hold, or hold very many small
// things.
func hostile() map[string][]byte {
	maker := mlstest.New(8)
	group := maker.GroupID()
	inputs := map[string][]byte{}
	private := maker.ApplicationMessage(group, 1, 100)
	for width, lengths := range map[int][]int{2: {1<<14 - 1}, 4: {1 << 20, 1<<30 - 1}, 8: {1 << 40, 1<<62 - 1}} {
		for _, length := range lengths {
			claim := mlstest.VectorOfWidth(width, length, nil)
			for _, at := range []int{4, 30, 31, 60} {
				inputs[fmt.Sprintf("length %d at byte %d", length, at)] = slices.Concat(private[:at], claim, private[at:])
			}
		}
	}
	key := maker.InstallationKey()
	k := maker.KeyPackage(key, maker.InboxID(), recordedNow)
	for i := range 1 << 16 {
		if allowedInLeaf(uint16(i)) && i != extensionApplicationID && i != extensionAppDataDictionary {
			k.Leaf.Extensions = append(k.Leaf.Extensions, mlstest.Extension{Type: uint16(i)})
		}
	}
	k.Leaf.Capabilities.Versions = make([]uint16, 400_000)
	k.Leaf.Capabilities.Extensions = append(make([]uint16, 200_000), k.Leaf.Capabilities.Extensions...)
	for i := 0xb000; i < 0xe000; i++ {
		if isGrease(uint16(i)) {
			continue
		}
		k.Extensions = append(k.Extensions, mlstest.Extension{Type: uint16(i)})
		k.Leaf.Capabilities.Extensions = append(k.Leaf.Capabilities.Extensions, uint16(i))
	}
	inputs[largeKeyPackage] = k.Signed(key)

	commit := maker.Public(mlstest.ContentCommit, group, 1, 0)
	nine := make([]mlstest.Extension, 9)
	for i := range nine {
		nine[i].Type = 0xff00 + uint16(i)
	}
	extensions := mlstest.InlineProposal(mlstest.Proposal(7, mlstest.Extensions(nine)))
	commit.Content = mlstest.Commit{Proposals: slices.Repeat([][]byte{extensions}, 1<<20/len(extensions))}.Encode()
	inputs["commit of many extension lists"] = commit.Encode()
	commit.Content = mlstest.Commit{Proposals: slices.Repeat([][]byte{{2, 0}}, 1<<19)}.Encode()
	inputs["commit of many references"] = commit.Encode()
	return inputs
}

// TestParsersAllocateLittle holds for any input: what a parse allocates does
// not depend on what the input claims, and validation takes one copy of it.
// It is not parallel, since it counts what the whole process allocates.
//
// Proves I9.
func TestParsersAllocateLittle(t *testing.T) {
	for name, data := range hostile() {
		size := allocated(func() { _, _ = ParseGroupMessage(data) })
		require.LessOrEqual(t, size, uint64(errorBytes), name)
		size = allocated(func() { _, _ = ParseKeyPackage(data) })
		require.LessOrEqual(t, size, uint64(errorBytes), name)
	}
	data := hostile()[largeKeyPackage]
	k, err := ParseKeyPackage(data)
	require.NoError(t, err)
	size := allocated(func() { err = k.Validate(recordedNow) })
	require.NoError(t, err)
	require.LessOrEqual(t, size, uint64(len(data)+len(data)/4+errorBytes))
}

func TestGroupMessageTakesNoAllocation(t *testing.T) {
	maker := mlstest.New(9)
	for _, data := range [][]byte{
		maker.CommitMessage(maker.GroupID(), 1),
		maker.Public(mlstest.ContentCommit, maker.GroupID(), 1, 0).Encode(),
	} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if _, err := ParseGroupMessage(data); err != nil {
				t.Error(err)
			}
		}))
	}
}
