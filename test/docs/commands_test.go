package docs

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// elsewhere are programs that pages name and that are not tried, with the reason.
var elsewhere = map[string]string{
	"ctr":                      "loads images on a user's node",
	"curl":                     "asks what a port-forward has opened on a user's machine",
	"docker":                   "runs the compilers of published releases; CI does, for each change",
	"gcloud":                   "Google's cloud",
	"kind":                     "a cluster in Docker",
	"kubeadm":                  "a machine of a control plane",
	"kubectl-inspect-gpushare": "gpushare's own plugin of kubectl",
	"minikube":                 "a cluster in Docker or a virtual machine",
	"nvidia-ctk":               "NVIDIA's container toolkit, on a node with a GPU",
	"nvidia-smi":               "a node with a GPU",
	"oc":                       "OpenShift",
	"skopeo":                   "copies images to a user's registry",
	"systemctl":                "services of a user's machine",
}

// wrong are commands that fail, or nothing would.
var wrong = []command{
	{text: "crictl ps", block: true},
	{text: "kubectl get pod nowhere", block: true},
	{text: "helm install gpumem charts/gpumem --set devicePlugin.devices={0,1}", block: true}, // numbers, not text
	{text: "helm install gpumem charts/gpumem --no-such-flag"},
	{text: "kubectl inspect gpumem --no-such-flag"},
	{text: "kubectl inspect gpumem defrag --no-such-flag"},
	{text: "kubectl inspect nobody"},
	{text: "make no-such-target"},
}

// tried are the programs of which commands in sentences are tried.
var tried = []string{"helm", "kubectl", "make"}

// A setting is what the blocks of a page find.
type setting struct {
	installs bool   // they install gpumem themselves
	dryRun   bool   // their helm does nothing: they are for clusters of vendors
	before   string // a script that makes what the page takes for granted
	after    string // a script that checks what the page has made
}

// settings are those of the pages that need one. The others find gpumem as the
// chart installs it.
var settings = map[string]setting{
	"README.md":               {installs: true},
	"charts/gpumem/README.md": {dryRun: true},
	"docs/install.md":         {dryRun: true},
	"docs/upgrading.md":       {dryRun: true},
	"docs/mig.md":             {dryRun: true}, // for GPUs in MIG mode; what it does is tried in test/e2e
	"docs/extender.md": {installs: true, before: `
		kubectl -n kube-system create configmap kubeadm-config --from-literal=ClusterConfiguration='kind: ClusterConfiguration'`},
	"docs/claims.md": {installs: true, after: `
		test "$(kubectl get pod single --output jsonpath={.spec.nodeName})" = node2
		kubectl delete -f config/samples/pod.yaml`},
	"docs/moving-from-hami.md": {installs: true, before: `kubectl label node node1 gpu=on`},
	"docs/migrating-from-gpushare.md": {installs: true, before: `
		kubectl label node node1 gpushare=true
		kubectl -n kube-system create deployment gpushare-schd-extender --image=gpushare --replicas=0
		kubectl -n kube-system create service clusterip gpushare-schd-extender --tcp=32766
		kubectl apply -f - <<-'END'
			apiVersion: apps/v1
			kind: DaemonSet
			metadata: {name: gpushare-device-plugin-ds, namespace: kube-system}
			spec:
			  selector: {matchLabels: {name: gpushare-device-plugin-ds}}
			  template:
			    metadata: {labels: {name: gpushare-device-plugin-ds}}
			    spec: {nodeSelector: {none: "true"}, containers: [{name: main, image: gpushare}]}
		END
		kubectl create -f config/samples/gpushare-statefulset.yaml`},
}

// A command is one that a page shows.
type command struct {
	line  int
	text  string
	block bool // a whole block, to be run
}

var (
	blockBegins = regexp.MustCompile("^( *)```(\\w*)$")
	inSentence  = regexp.MustCompile("`([^`]+)`")
	program     = regexp.MustCompile(`^(?:[A-Z]+=\S+ )*([a-z-]+)( |$)`)
)

// commandsOf returns the commands of a page: blocks of shell, and what stands in
// sentences or behind a prompt.
func commandsOf(text string) []command {
	var out []command
	var indent string
	var inBlock, shell bool
	for i, line := range strings.Split(text, "\n") {
		fence := blockBegins.FindStringSubmatch(line)
		switch {
		case fence != nil:
			inBlock, indent = !inBlock, fence[1]
			shell = inBlock && slices.Contains([]string{"sh", "bash", "shell"}, fence[2])
			if shell {
				out = append(out, command{line: i + 2, block: true})
			}
		case inBlock && shell:
			out[len(out)-1].text += strings.TrimPrefix(line, indent) + "\n"
		case inBlock && strings.HasPrefix(line, "$ "):
			out = append(out, command{line: i + 1, text: line[2:]})
		case !inBlock:
			for _, span := range inSentence.FindAllStringSubmatch(line, -1) {
				if name := program.FindStringSubmatch(span[1]); name != nil && (slices.Contains(tried, name[1]) || elsewhere[name[1]] != "") {
					out = append(out, command{line: i + 1, text: span[1]})
				}
			}
		}
	}
	return out
}

func TestCommandsOf(t *testing.T) {
	page := "Say `kubectl get pods`, `KEEP=1 make demo` or `policy`.\n" +
		"  ```sh\n  make x \\\n    y\n  ```\n" +
		"```text\n$ helm list\nNAME\n```\n```bash\nls\n```\n```yaml\nkind: `make`\n```\n"
	want := []command{
		{line: 1, text: "kubectl get pods"},
		{line: 1, text: "KEEP=1 make demo"},
		{line: 3, text: "make x \\\n  y\n", block: true},
		{line: 7, text: "helm list"},
		{line: 11, text: "ls\n", block: true},
	}
	if diff := cmp.Diff(want, commandsOf(page), cmp.AllowUnexported(command{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestEveryCommandOfTheDocs(t *testing.T) {
	if err := cluster.CheckHost(); testing.Short() || err != nil {
		t.Skip("no real cluster: ", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	log := stack.Progress(t.Output())
	m := machine{dir: t.TempDir()}
	var err error
	if m.checkout, err = filepath.Abs(root); err != nil {
		t.Fatal(err)
	}
	config := cluster.Config{Name: "docs", Log: log}
	if config.Nodes, err = stack.TwoNodes(); err != nil {
		t.Fatal(err)
	}
	err = stack.With(ctx, config, func(c *cluster.Cluster, built *stack.Stack) error {
		m.cluster, m.stack = c, built
		if err := errors.Join(m.stack.LoadImages(ctx, c), m.prepare(ctx)); err != nil {
			return err
		}
		m.tryPages(ctx, t)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tryPages tries the commands of all pages, those first that install gpumem
// themselves, and sees that the list of what is elsewhere has nothing too much.
func (m machine) tryPages(ctx context.Context, t *testing.T) {
	for _, installs := range []bool{true, false} {
		if !installs {
			if _, err := m.stack.Install(ctx, m.cluster); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range pages(t) {
			if at := settings[name]; at.installs == installs {
				t.Run(name, func(t *testing.T) { m.tryPage(ctx, t, at, commandsOf(readPage(t, name))) })
			}
		}
	}
	for _, c := range wrong {
		if err := m.try(ctx, c, "--dry-run=server"); err == nil {
			t.Errorf("%s: no error", c.text)
		}
	}
	named, err := os.ReadFile(filepath.Join(m.dir, "elsewhere"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(elsewhere)) {
		if !slices.Contains(strings.Fields(string(named)), name) {
			t.Errorf("no page names %s any more: take it from the list", name)
		}
	}
}

func (m machine) tryPage(ctx context.Context, t *testing.T, at setting, commands []command) {
	site := "--values charts/gpumem/ci/demo-values.yaml"
	if at.dryRun {
		site = "--dry-run=server"
	}
	if at.installs {
		defer func() {
			if err := m.run(ctx, "helm uninstall gpumem --namespace gpumem-system --wait"); err != nil {
				t.Error(err)
			}
			if err := m.run(ctx, "! kubectl get nodes --output yaml | grep -e gpumem.dev/inventory -e GPUMemoryHealthy"); err != nil {
				t.Errorf("left on nodes: %v", err)
			}
		}()
	}
	if err := m.run(ctx, at.before); err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		if err := m.try(ctx, c, site); err != nil {
			t.Errorf("line %d: %s\n%v", c.line, strings.TrimSpace(c.text), err)
		}
	}
	if err := m.run(ctx, at.after); err != nil {
		t.Error(err)
	}
}
