package store_test

import (
	"testing"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
