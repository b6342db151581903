package sim

import (
	"os"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// TestMain keeps errors from being slowed down: the library sleeps until a millisecond after
// the last error of the process, which to a bubble in the year 2000 is 26 years away.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}
