package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/test/progress"
)

// hostPrograms are those that come from the machine, with the Debian packages
// that have them: kube-proxy and the kubelet call the one, containerd the other.
func hostPrograms() map[string]string {
	return map[string]string{"nft": "nftables", "runc": "runc"}
}

// CheckHost says why this machine cannot run a cluster, or nil.
func CheckHost() error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: it makes namespaces, mounts and control groups")
	}
	return nil
}

// HostPackages returns the Debian packages with programs that a cluster needs, and the subset that
// this machine lacks.
func HostPackages() (needed, missing []string) {
	programs := hostPrograms()
	for _, program := range slices.Sorted(maps.Keys(programs)) {
		needed = append(needed, programs[program])
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, programs[program])
		}
	}
	return needed, missing
}

// installPackages installs the programs of the machine that are missing.
func installPackages(ctx context.Context, log io.Writer) error {
	if err := CheckHost(); err != nil {
		return err
	}
	_, missing := HostPackages()
	if len(missing) == 0 {
		return nil
	}
	names := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("this machine lacks programs that a cluster needs; install the packages: %s", names)
	}
	fmt.Fprintf(log, "installing packages: %s\n", names)
	for _, args := range [][]string{{"update", "-qq"}, append([]string{"install", "-qq", "-y", "--no-install-recommends"}, missing...)} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := progress.Run(cmd, log, "apt-get "+args[0]); err != nil {
			return fmt.Errorf("install the packages %s: %w", names, err)
		}
	}
	return nil
}
