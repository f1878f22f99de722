package stack

import (
	"io"
	"time"

	"github.com/gpumem/gpumem/test/progress"
)

// Progress returns a writer that puts the time since now before each line. Several goroutines may
// write to it at once, each of them whole lines.
func Progress(out io.Writer) io.Writer { return progress.NewWriter(out, time.Now()) }
