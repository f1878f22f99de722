package component

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/test/progress"
)

// compile builds the programs of a component into the folder out.
func (b Builder) compile(ctx context.Context, r recipe, out string, log io.Writer) error {
	if r.compiler == nil {
		return progress.Build{
			Name:     r.name,
			Dir:      filepath.Join(b.Sources, r.module),
			Packages: r.packages,
			Flags:    r.flags,
			Link:     r.link,
			Env:      []string{"CGO_ENABLED=0"},
			Output:   out + "/",
		}.Run(ctx, log)
	}
	files, err := b.files(r)
	if err != nil {
		return err
	}
	args := slices.Concat(r.compiler[1:], []string{"-o", filepath.Join(out, r.output)})
	for _, name := range files {
		if strings.HasSuffix(name, ".c") {
			args = append(args, name)
		}
	}
	cmd := exec.CommandContext(ctx, r.compiler[0], append(args, "-lpthread", "-ldl")...)
	cmd.Dir = b.Sources
	return progress.Run(cmd, log, r.name)
}
