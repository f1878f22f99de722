// Command kubectl-inspect-gpumem shows the GPU memory of a cluster by node, GPU and pod. kubectl runs it
// as "kubectl inspect gpumem".
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/pkg/cli"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
)

// version is the program's version, which the linker sets.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(cmdutil.ExitCode(err))
}

// run executes the command. If it returns an error, it has printed the error.
func run(ctx context.Context, args []string, streams genericiooptions.IOStreams) error {
	// Discard client-go's log: client-go returns the same errors.
	klog.SetLogger(klog.Logger{})
	f := cmdutil.NewFactory(streams, version)
	f.Colours, f.Bars, f.Terminal = colours(streams.Out), bars(streams.Out), columns(streams.Out)
	f.Log = func(level int) {
		klog.ClearLogger()
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		klog.InitFlags(flags)
		_ = flags.Set("v", strconv.Itoa(level)) // the value is a valid number
	}
	cmd := cli.NewCommand(f)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(streams.ErrOut, "error: %v\n", err)
	}
	return err
}

// bars reports whether the output is a terminal and the user's locale has the characters that draw bars.
func bars(out io.Writer) bool {
	file, ok := out.(*os.File)
	locale := strings.ToUpper(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return ok && strings.Contains(locale, "UTF") && term.IsTerminal(int(file.Fd()))
}

// colours reports whether the output is a terminal and the user has not disabled colours (no-color.org).
func colours(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// columns returns the width of the output's terminal in columns; 0 if the output is no terminal.
func columns(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}
