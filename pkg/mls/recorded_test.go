package mls

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const recordings = "../testdata/real-client"

// recordedNow is a time at which every recorded key package is valid.
var recordedNow = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

// recorded is a payload of a published client with what is known of it.
type recorded struct {
	ID     string
	Kind   string
	File   string
	Expect json.RawMessage

	data []byte
}

// recordedFacts is what the manifest knows of group messages and key packages.
type recordedFacts struct {
	// Group messages.
	GroupID     string `json:"group_id"`
	Epoch       uint64
	ContentType string `json:"content_type"`

	// Key packages.
	ProtocolVersion uint16 `json:"protocol_version"`
	CipherSuite     uint16 `json:"cipher_suite"`
	InitKey         string `json:"init_key"`
	EncryptionKey   string `json:"leaf_encryption_key"`
	InstallationID  string `json:"installation_id"`
	CredentialType  uint16 `json:"credential_type"`
	InboxID         string `json:"inbox_id"`
	LeafNodeSource  uint8  `json:"leaf_node_source"`
	NotBefore       uint64 `json:"not_before"`
	NotAfter        uint64 `json:"not_after"`
	Capabilities    struct {
		Versions     []uint16
		CipherSuites []uint16 `json:"cipher_suites"`
		Extensions   []uint16
		Proposals    []uint16
		Credentials  []uint16
	}
	PackageExtensions map[string]string `json:"key_package_extensions"`
	LeafExtensions    map[string]string `json:"leaf_node_extensions"`
}

// readRecorded returns the recorded payloads of a kind, in order of arrival.
func readRecorded(t testing.TB, kind string) []recorded {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join(recordings, "manifest.json"))
	require.NoError(t, err)
	var all, chosen []recorded
	require.NoError(t, json.Unmarshal(manifest, &all))
	for _, payload := range all {
		if payload.Kind != kind {
			continue
		}
		payload.data, err = os.ReadFile(filepath.Join(recordings, payload.File))
		require.NoError(t, err)
		chosen = append(chosen, payload)
	}
	return chosen
}

func (p recorded) facts(t testing.TB) (facts recordedFacts) {
	t.Helper()
	require.NoError(t, json.Unmarshal(p.Expect, &facts))
	return facts
}
