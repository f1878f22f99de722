package daemon

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/spf13/pflag"
)

// TestMainReturnsTheExitCode verifies that a program that has printed its help or version succeeds.
func TestMainReturnsTheExitCode(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	for arg, want := range map[string]int{"--help": 0, "--version": 0, "--log-level=debug": 0, "--log-level=loud": 1, "--none": 1, "more": 1} {
		os.Args = []string{"program", arg}
		code := Main("program", func(_ context.Context, args []string, _, _ io.Writer) error {
			o := Options{Kube: Kube{QPS: 1, Burst: 1}}
			if err := o.Parse(pflag.NewFlagSet("program", pflag.ContinueOnError), "v1", "program runs.", args, io.Discard); err != nil {
				return err
			}
			return o.Validate()
		})
		if code != want {
			t.Errorf("%s: exit code %d, want %d", arg, code, want)
		}
	}
	if code := Main("program", func(context.Context, []string, io.Writer, io.Writer) error { return errors.New("failed") }); code != 1 {
		t.Errorf("exit code %d after an error", code)
	}
}
