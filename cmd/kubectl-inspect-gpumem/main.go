// Command kubectl-inspect-gpumem shows who holds what GPU memory in a cluster.
// kubectl finds it by its name: kubectl inspect gpumem.
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

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(cmdutil.ExitCode(err))
}

// run does what the arguments say. It has printed the error that it
// returns.
func run(ctx context.Context, args []string, streams genericiooptions.IOStreams) error {
	// What client-go logs next to the errors that it returns is no news to a user.
	klog.SetLogger(klog.Logger{})
	f := cmdutil.NewFactory(streams, version)
	f.Colours, f.Bars, f.Terminal = colours(streams.Out), bars(streams.Out), columns(streams.Out)
	f.Log = func(level int) {
		klog.ClearLogger()
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		klog.InitFlags(flags)
		_ = flags.Set("v", strconv.Itoa(level)) // a number
	}
	cmd := cli.NewCommand(f)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(streams.ErrOut, "error: %v\n", err)
	}
	return err
}

// bars reports whether a terminal reads the output, and its user's locale has the signs of bars.
func bars(out io.Writer) bool {
	file, ok := out.(*os.File)
	locale := strings.ToUpper(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return ok && strings.Contains(locale, "UTF") && term.IsTerminal(int(file.Fd()))
}

// colours reports whether a terminal reads the output, and its user has not
// asked for none (no-color.org).
func colours(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// columns returns the width of the terminal that reads the output, or 0 if none does.
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
