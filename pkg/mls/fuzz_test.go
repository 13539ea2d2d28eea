package mls

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
)

// largestSeed keeps fuzzing fast: larger recordings hold nothing new.
const largestSeed = 4096

func FuzzParseGroupMessage(f *testing.F) {
	for _, payload := range readRecorded(f, "group_message") {
		if len(payload.data) <= largestSeed {
			f.Add(payload.data)
		}
	}
	for _, c := range mlstest.New(1).GroupMessageCases() {
		f.Add(c.Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		message, err := ParseGroupMessage(data)
		require.Equal(t, before, data)
		if err != nil {
			requireReason(t, err, fault.MalformedPayload)
			require.Zero(t, message)
			return
		}
		require.Equal(t, data[5:21], message.GroupID[:])
		require.Contains(t, []ContentType{ContentApplication, ContentProposal, ContentCommit}, message.ContentType)
		longer, err := ParseGroupMessage(append(data, 0xff))
		require.NoError(t, err)
		require.Equal(t, message, longer)
	})
}

func FuzzParseKeyPackage(f *testing.F) {
	for _, payload := range readRecorded(f, "key_package") {
		f.Add(payload.data)
	}
	for _, c := range mlstest.New(1).KeyPackageCases(recordedNow) {
		f.Add(c.Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := ParseKeyPackage(data)
		if err != nil {
			requireReason(t, err, fault.MalformedPayload)
			return
		}
		require.True(t, bytes.Contains(data, keyOf(k)))
		require.Len(t, k.signed, len(data)-len(mlstest.Vector(k.signature)))
		if err := k.Validate(recordedNow); err != nil {
			requireReason(t, err, fault.InvalidKeyPackage)
		}
		_, err = ParseKeyPackage(append(data, 0))
		requireReason(t, err, fault.MalformedPayload)
	})
}
