package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// A machine is where commands run: a cluster, a copy of what of the checkout
// they name, and a PATH.
type machine struct {
	cluster  *cluster.Cluster
	stack    *stack.Stack
	checkout string // the folder of it
	dir      string // where commands run
}

// try runs a block, and of another command tries what it is made of. Helm
// installs with the flags of the site.
func (m machine) try(ctx context.Context, c command, site string) error {
	if c.block {
		return m.run(ctx, c.text, "SITE="+site)
	}
	return m.run(ctx, c.text, "FLAGS=--help")
}

// run has bash run a script. What the script would change on a user's machine, it
// changes in the machine's folder.
func (m machine) run(ctx context.Context, script string, env ...string) error {
	script = strings.NewReplacer(
		"/usr/local/bin/", m.dir+"/local/", "/etc/kubernetes/gpumem", m.dir+"/etc", "/etc/rancher/k3s/k3s.yaml", m.cluster.Kubeconfig(),
	).Replace(script)
	cmd := exec.CommandContext(ctx, "/bin/bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = m.dir
	cmd.Env = append(cmd.Env, env...)
	cmd.Env = append(cmd.Env, "PATH="+m.dir+"/path", "HOME="+m.dir, "CHECKOUT="+m.checkout, "KUBECONFIG="+m.cluster.Kubeconfig(), "ELSEWHERE="+m.dir+"/elsewhere")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, output[max(0, len(output)-2000):])
	}
	return nil
}

// prepare fills the machine's folder.
func (m machine) prepare(ctx context.Context) error {
	kubectl, err := m.cluster.Kubectl()
	if err != nil {
		return err
	}
	helm, err := m.cluster.Helm(ctx, os.Stderr)
	if err != nil {
		return err
	}
	scripts := map[string]string{
		"make": `exec /usr/bin/make --dry-run --directory "$CHECKOUT" "$@"`,
		// A port-forward does not end.
		"kubectl": `case " $* " in *" port-forward "*) FLAGS=--help;; esac; exec ` + kubectl + ` "$@" ${FLAGS:-}`,
		"helm":    `case $1 in install|upgrade) set -- "$@" ${SITE:-};; esac; exec ` + helm + ` "$@" ${FLAGS:-}`,
	}
	for name := range elsewhere {
		scripts[name] = `echo ` + name + ` >> $ELSEWHERE`
	}
	err = m.run(ctx, `PATH=/usr/bin:/bin
		mkdir path etc local
		ln -s "$CHECKOUT"/charts "$CHECKOUT"/config "$CHECKOUT"/test .
		ln -s "$BUILT" bin
		ln -s "$BUILT"/kubectl-inspect-gpumem /bin/{bash,cat,chmod,diff,dirname,grep,id,install} path/`, "BUILT="+filepath.Dir(m.stack.Binary("any")))
	if err != nil {
		return err
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(m.dir, "path", name), []byte("#!/bin/bash\n"+script+"\n"), 0o755); err != nil {
			return err
		}
	}
	return nil
}
