package mls

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
)

// requireReason wants a failure for one reason, with a text that starts like
// all of its kind.
func requireReason(t *testing.T, err error, reason fault.Reason) {
	t.Helper()
	require.Error(t, err)
	failure := fault.Of(err)
	require.Equal(t, fault.Invalid, failure.Kind, failure.Text())
	require.Equal(t, reason, failure.Reason, failure.Text())
	require.Equal(t, fault.WholeRequest, failure.Index)
}

// Proves API-041.
func TestGroupMessageEdgeCases(t *testing.T) {
	t.Parallel()
	for _, c := range mlstest.New(1).GroupMessageCases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			message, err := ParseGroupMessage(c.Data)
			if c.Reason != fault.NoReason {
				requireReason(t, err, c.Reason)
				require.Zero(t, message)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.GroupID, message.GroupID)
			require.Equal(t, c.Epoch, message.Epoch)
			require.Equal(t, c.IsCommitOrProposal, message.IsCommitOrProposal())
		})
	}
}

func TestEveryEdgeCaseIsThere(t *testing.T) {
	t.Parallel()
	maker := mlstest.New(1)
	present := map[string]bool{}
	for _, c := range maker.GroupMessageCases() {
		present[c.Name[:2]] = true
	}
	for _, c := range maker.KeyPackageCases(recordedNow) {
		present[c.Name[:2]] = true
	}
	for number := 1; number <= 59; number++ {
		require.True(t, present[fmt.Sprintf("%02d", number)], "case %d", number)
	}
}

// Proves API-041.
func TestRecordedGroupMessages(t *testing.T) {
	t.Parallel()
	messages := readRecorded(t, "group_message")
	require.Len(t, messages, 167)
	for _, payload := range messages {
		facts := payload.facts(t)
		message, err := ParseGroupMessage(payload.data)
		require.NoError(t, err, payload.ID)
		require.Equal(t, facts.GroupID, hex.EncodeToString(message.GroupID[:]), payload.ID)
		require.Equal(t, facts.Epoch, message.Epoch, payload.ID)
		require.Equal(t, facts.ContentType, message.ContentType.String(), payload.ID)
		require.Equal(t, facts.ContentType == "commit", message.IsCommitOrProposal(), payload.ID)
	}
}

// TestNoPrefixOfAGroupMessageParses cuts recorded and made messages everywhere:
// what is missing is always noticed, and what follows never matters.
//
// Proves API-041.
func TestNoPrefixOfAGroupMessageParses(t *testing.T) {
	t.Parallel()
	maker := mlstest.New(2)
	whole := map[string][]byte{
		"public application": maker.Public(mlstest.ContentApplication, maker.GroupID(), 1, 30).Encode(),
		"public proposal":    maker.Public(mlstest.ContentProposal, maker.GroupID(), 1, 30).Encode(),
		"public commit":      maker.Public(mlstest.ContentCommit, maker.GroupID(), 1, 30).Encode(),
	}
	for _, payload := range readRecorded(t, "group_message") {
		if len(payload.data) < 500 {
			whole[payload.ID] = payload.data
		}
	}
	for name, data := range whole {
		expected, err := ParseGroupMessage(data)
		require.NoError(t, err, name)
		for end := range data {
			_, err := ParseGroupMessage(data[:end])
			requireReason(t, err, fault.MalformedPayload)
		}
		longer, err := ParseGroupMessage(append(append([]byte{}, data...), data...))
		require.NoError(t, err, name)
		require.Equal(t, expected, longer, name)
	}
}

func TestGroupMessageVectors(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		file    string
		group   string
		epoch   uint64
		content ContentType
	}{
		{"group_message_row1.hex", "f9f9cf4bd07820782e9c0c323f461649", 0, ContentCommit},
		{"group_message_row8.hex", "4aa6f59d9ddc4ca2f2ee53c61aa621a0", 2, ContentApplication},
	} {
		message, err := ParseGroupMessage(readHex(t, v.file))
		require.NoError(t, err, v.file)
		require.Equal(t, v.group, hex.EncodeToString(message.GroupID[:]))
		require.Equal(t, v.epoch, message.Epoch)
		require.Equal(t, v.content, message.ContentType)
	}
}

// readHex reads a vector of the public test data of another backend.
func readHex(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "vectors", file))
	require.NoError(t, err)
	data, err := hex.DecodeString(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	return data
}

// TestGroupMessageErrorsSayWhere pins what a client developer gets to read.
func TestGroupMessageErrorsSayWhere(t *testing.T) {
	t.Parallel()
	maker := mlstest.New(3)
	good := maker.ApplicationMessage(maker.GroupID(), 1, 100)
	contentType := append([]byte{}, good...)
	contentType[29] = 9
	for _, c := range []struct {
		data []byte
		text string
	}{
		{nil, "the group message does not parse at byte 0: the version takes 2 bytes, but only 0 are left"},
		{[]byte{0, 1, 0, 3}, "the group message does not parse at byte 2: it is a Welcome, expected a PrivateMessage or a PublicMessage"},
		{good[:4], "the group message does not parse at byte 4: the group id is missing, expected its length"},
		{contentType, "the group message does not parse at byte 29: the content type is 9, expected 1 (application), 2 (proposal) or 3 (commit)"},
		{good[:len(good)-1], "the group message does not parse at byte 60: the ciphertext takes 100 bytes, but only 99 are left"},
		{append(good[:60:60], 0x80, 0, 0, 100), "the group message does not parse at byte 60: the length 100 of the ciphertext is written in 4 bytes, expected the fewest that hold it"},
		{append(good[:60:60], 0xc0), "the group message does not parse at byte 60: the length of the ciphertext is written in 8 bytes, expected 1, 2 or 4"},
	} {
		_, err := ParseGroupMessage(c.data)
		require.EqualError(t, err, c.text)
	}
}

func TestContentTypeNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "application", ContentApplication.String())
	require.Equal(t, "proposal", ContentProposal.String())
	require.Equal(t, "commit", ContentCommit.String())
	require.Equal(t, "content type 9", ContentType(9).String())
}
