package notice_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/xmtp-selfhosted/backend/pkg/natslocal/natstest"
)

func TestMain(m *testing.M) {
	natstest.Main()
	goleak.VerifyTestMain(m)
}
