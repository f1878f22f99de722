package clirun

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Inspect runs a command against a fake cluster and returns its output. With a nil client, the command
// connects by its own flags.
func Inspect(client *fake.Clientset, args ...string) (stdout, stderr string, err error) {
	return OnTerminal(client, 0, args...)
}

// OnTerminal is Inspect with a terminal as output. Parameter columns is the width of the terminal.
func OnTerminal(client *fake.Clientset, columns int, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	f := cmdutil.NewFactory(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}, "dev")
	f.Terminal = columns
	if client != nil {
		f.Client = client
	}
	cmd := cli.NewCommand(f)
	cmd.SetArgs(append([]string{}, args...)) // with nil, cobra parses the arguments of the test binary
	err = cmd.Execute()
	return out.String(), errOut.String(), err
}

// Until runs a command until the context is done, and discards its output.
func Until(ctx context.Context, client kubernetes.Interface, args ...string) error {
	f := cmdutil.NewFactory(genericiooptions.NewTestIOStreamsDiscard(), "dev")
	f.Client = client
	cmd := cli.NewCommand(f)
	cmd.SetArgs(args)
	return cmd.ExecuteContext(ctx)
}

// Golden compares the output of a command with testdata/NAME.txt. With -update it rewrites the file.
func Golden(t *testing.T, client *fake.Clientset, name string, args []string) {
	t.Helper()
	stdout, stderr, err := Inspect(client, args...)
	got := fmt.Sprintf("$ kubectl inspect gpumem %s\n%s--- stderr\n%s--- error\n%v\n", strings.Join(args, " "), stdout, stderr, err)
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
