package mlstest_test

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/mls"
	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// TestSameSeedSamePayloads makes everything twice. Load and its check run in
// different processes and have to agree on every byte.
func TestSameSeedSamePayloads(t *testing.T) {
	t.Parallel()
	type everything struct {
		Groups   []mlstest.GroupMessageCase
		Packages []mlstest.KeyPackageCase
	}
	run := func(seed uint64) everything {
		maker := mlstest.New(seed)
		return everything{maker.GroupMessageCases(), maker.KeyPackageCases(now)}
	}
	first, again, other := run(1), run(1), run(2)
	require.Equal(t, first, again)
	require.NotEqual(t, first, other)
}

// TestFirstPayloadsOfASeed fails if a release changes what a seed stands for.
func TestFirstPayloadsOfASeed(t *testing.T) {
	t.Parallel()
	group := mlstest.New(1).GroupID()
	require.Equal(t, "206011ec03bf1d55b2bcc9f15acd67ba", hex.EncodeToString(group[:]))
}

func TestMadePayloadsAreValid(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		maker := mlstest.New(seed)
		group, size := maker.GroupID(), int(seed*seed*40)
		for content, data := range map[mls.ContentType][]byte{
			mls.ContentApplication: maker.ApplicationMessage(group, seed, size),
			mls.ContentProposal:    maker.ProposalMessage(group, seed),
			mls.ContentCommit:      maker.CommitMessage(group, seed),
		} {
			public := maker.Public(uint8(content), group, seed, size).Encode()
			for _, encoded := range [][]byte{data, public} {
				message, err := mls.ParseGroupMessage(encoded)
				require.NoError(t, err)
				require.Equal(t, mls.GroupMessage{GroupID: group, Epoch: seed, ContentType: content}, message)
			}
		}

		key := maker.InstallationKey()
		k, err := mls.ParseKeyPackage(maker.SignedKeyPackage(key, maker.InboxID(), now))
		require.NoError(t, err)
		require.NoError(t, k.Validate(now))
		require.Error(t, k.Validate(now.Add(mlstest.Lifetime)))
		require.Error(t, k.Validate(now.Add(-mlstest.Backdated-time.Second)))
		installation := k.InstallationKey()
		require.EqualValues(t, key.Public(), installation[:])
	}
}

// TestMadeKeyPackageHasTheSizeOfAClients keeps load realistic.
func TestMadeKeyPackageHasTheSizeOfAClients(t *testing.T) {
	t.Parallel()
	maker := mlstest.New(1)
	require.Len(t, maker.SignedKeyPackage(maker.InstallationKey(), maker.InboxID(), now), 1659)
}
