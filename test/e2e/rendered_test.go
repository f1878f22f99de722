package e2e

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// A release that no Helm has installed: it is rendered with no cluster at hand, and the
// text is applied. It works in a domain of its own.
const (
	rendered          = "rendered"
	renderedNamespace = "rendered-system"
	renderedDomain    = "rendered.example.com"
	renderedScheduler = "rendered-gpumem-scheduler"
)

// gitops is who applies, as kubectl is to say it.
const gitops = "--field-manager=gitops"

// Argo CD renders the chart by "helm template" with the minor version of the cluster and the kinds
// that it serves, applies the text on the server, and runs hooks itself. Flux's kustomize-controller
// applies what somebody has rendered in the same way. (Its helm-controller installs by Helm, as the
// other tests do.) Both look again and again whether the cluster is as the text says.
func TestRenderedAwayFromTheClusterAndAppliedOnTheServer(t *testing.T) {
	e := setup(t)
	e.domain = renderedDomain
	kubectl := func(ctx context.Context, args ...string) string {
		t.Helper()
		out, err := suite.stack.Kubectl(ctx, e.cluster, args...)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	text := e.renderAway()
	if diff := cmp.Diff(text, e.renderAway()); diff != "" {
		t.Fatalf("rendered twice (-first +second):\n%s", diff)
	}
	objects, hooks := splitHooks(text)
	if without := e.renderAway("--no-hooks"); len(hooks) == 0 || strings.Count(without, "\nkind: ") != len(objects) {
		t.Fatalf("%d objects and %d hooks, and without hooks it has %d objects", len(objects), len(hooks), strings.Count(without, "\nkind: "))
	}
	all, after := e.file("objects.yaml", objects), e.file("hooks.yaml", hooks)

	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
		defer cancel()
		kubectl(ctx, "delete", "--filename", all, "--timeout=1m")
		kubectl(ctx, "wait", "pods", "--namespace", renderedNamespace, "--all", "--for=delete", "--timeout=1m")
		kubectl(ctx, "apply", "--server-side", gitops, "--filename", after)
		kubectl(ctx, "wait", "--for=condition=Complete", "job", "--all", "--namespace", renderedNamespace, "--timeout=1m")
		kubectl(ctx, "delete", "--filename", after, "--timeout=1m")
		e.nothingIsLeft(ctx, rendered, renderedNamespace, renderedDomain)
	})
	kubectl(e.ctx, "create", "namespace", renderedNamespace)
	kubectl(e.ctx, "apply", "--server-side", gitops, "--filename", all)
	for _, part := range []string{"deployment/" + renderedScheduler, "daemonset/rendered-gpumem-device-plugin"} {
		kubectl(e.ctx, "rollout", "status", part, "--namespace", renderedNamespace, "--timeout=2m")
	}
	e.create(e.pod("first", 0, asking(renderedDomain+"/gpu-mem", 3), func(pod *v1.Pod) { pod.Spec.SchedulerName = renderedScheduler }))
	e.running("first")
	e.agree("first", "main")
	// kubectl diff fails where it finds something.
	if diff := kubectl(e.ctx, "diff", "--server-side", gitops, "--filename", all); diff != "" {
		t.Errorf("what is there is not what was applied:\n%s", diff)
	}
}

// renderAway renders the chart for the release as Argo CD does, with no cluster to ask.
func (e *env) renderAway(flags ...string) string {
	e.Helper()
	helm, err := e.cluster.Helm(e.ctx, io.Discard)
	if err != nil {
		e.Fatal(err)
	}
	version, err := e.client.Discovery().ServerVersion()
	if err != nil {
		e.Fatal(err)
	}
	chart := suite.stack.Chart()
	cmd := exec.CommandContext(e.ctx, helm, append([]string{
		"template", chart, "--name-template", rendered, "--namespace", renderedNamespace, "--include-crds",
		"--kube-version", version.Major + "." + version.Minor, "--api-versions", "v1", "--api-versions", "v1/Pod",
		"--values", filepath.Join(chart, "ci", "demo-values.yaml"),
		"--set", "resourceDomain=" + renderedDomain + ",scheduler.schedulerName=" + renderedScheduler,
	}, flags...)...)
	cmd.Env = []string{"HOME=" + e.TempDir(), "KUBECONFIG=/nowhere"}
	out, err := cmd.Output()
	if err != nil {
		e.Fatalf("%s: %v", cmd, err)
	}
	return string(out)
}

// splitHooks returns the objects of a render, and what is to run when they have been deleted.
// What is for "helm test" is neither.
func splitHooks(text string) (objects, afterDelete []string) {
	for document := range strings.SplitSeq(text, "\n---\n") {
		switch {
		case strings.Contains(document, "\n    helm.sh/hook: post-delete\n"):
			afterDelete = append(afterDelete, document)
		case !strings.Contains(document, "helm.sh/hook:") && strings.Contains(document, "\nkind: "):
			objects = append(objects, document)
		}
	}
	return objects, afterDelete
}

func (e *env) file(name string, documents []string) string {
	e.Helper()
	file := filepath.Join(e.TempDir(), name)
	if err := os.WriteFile(file, []byte(strings.Join(documents, "\n---\n")), 0o600); err != nil {
		e.Fatal(err)
	}
	return file
}
