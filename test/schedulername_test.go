package test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const mutatingPolicy = "/MutatingAdmissionPolicy"

// TestSetSchedulerName renders the values of admission.setSchedulerName for API servers with and
// without mutating admission policies.
func TestSetSchedulerName(t *testing.T) {
	const (
		ga, beta = "admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1beta1"
		needs    = "admission.setSchedulerName is true, and the cluster's Kubernetes is v1.35.8: mutating admission policies need 1.36, or 1.34 with the API admissionregistration.k8s.io/v1beta1"
		existing = "scheduler.mode=existing,extender.tls.source=cert-manager"
	)
	for _, tc := range []struct {
		set, version string
		kinds        []string // nil: Helm was passed none
		want         string   // the API version of the policy
		refused      string
	}{
		{set: "", version: "v1.36.3", want: ga},
		{set: "auto", version: "1.36", want: ga},
		{set: "auto", version: "v1.38.0-gke.1", want: ga},
		{set: "auto", version: "v1.35.8"},
		{set: "auto", version: "v1.31.0"},
		{set: "auto", version: "v1.36.3", kinds: apis(ga + mutatingPolicy), want: ga},
		{set: "auto", version: "v1.36.3", kinds: apis()}, // the API server was told not to serve it
		{set: "auto", version: "v1.36.3", kinds: apis(ga+mutatingPolicy, beta+mutatingPolicy), want: ga},
		{set: "auto", version: "v1.35.8", kinds: apis()},
		{set: "auto", version: "v1.34.6", kinds: apis(beta + mutatingPolicy), want: beta},
		{set: "auto," + existing, version: "v1.36.3", kinds: apis(ga + mutatingPolicy)},
		{set: "false", version: "v1.36.3", kinds: apis(ga + mutatingPolicy)},
		{set: "true", version: "v1.36.3", want: ga},
		{set: "true", version: "v1.36.3", kinds: apis(), want: ga},
		{set: "true", version: "v1.35.8", kinds: apis(beta + mutatingPolicy), want: beta},
		{set: "true", version: "v1.35.8", refused: needs},
		{set: "true", version: "v1.35.8", kinds: apis(), refused: needs},
		{set: "true," + existing, version: "v1.36.3", refused: "admission.setSchedulerName is true, and scheduler.mode is existing"},
		{set: "sometimes", version: "v1.36.3", refused: "/admission/setSchedulerName"},
	} {
		flags := append([]string{"--kube-version", tc.version}, tc.kinds...)
		if tc.set != "" {
			flags = append(flags, "--set", "admission.setSchedulerName="+tc.set)
		}
		text, err := render(t, chart, flags...)
		if tc.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%q: want %q, got %v", flags, tc.refused, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", flags, err)
			continue
		}
		got := make(map[string]string)
		for _, object := range documents(t, text) {
			if kind, _ := object["kind"].(string); strings.HasPrefix(kind, "MutatingAdmissionPolicy") {
				got[kind], _ = object["apiVersion"].(string)
			}
		}
		want := map[string]string{"MutatingAdmissionPolicy": tc.want, "MutatingAdmissionPolicyBinding": tc.want}
		if tc.want == "" {
			want = map[string]string{}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", flags, diff)
		}
	}
}

// apiServer serves lists of objects to the function lookup of Helm. It returns flags that make
// "helm template" use it. Each node has the inventory, if there is one.
func apiServer(t *testing.T, nodes int, pods []map[string]any, daemonSet map[string]any, inventory ...string) []string {
	t.Helper()
	type object = map[string]any
	resource := func(name, kind string, namespaced bool) object {
		return object{"name": name, "kind": kind, "namespaced": namespaced, "verbs": []string{"get", "list"}}
	}
	answers := map[string]object{
		"/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []object{
			resource("pods", "Pod", true), resource("nodes", "Node", false), resource("namespaces", "Namespace", false),
		}},
		"/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": []object{resource("daemonsets", "DaemonSet", true)}},
		"/api/v1/pods":  {"kind": "PodList", "apiVersion": "v1", "items": pods},
	}
	list := make([]object, nodes)
	for i := range list {
		list[i] = object{"kind": "Node", "apiVersion": "v1", "metadata": object{"name": "node"}}
		for _, text := range inventory {
			list[i]["metadata"] = object{"name": "node", "annotations": object{"gpumem.dev/inventory": text}}
		}
	}
	answers["/api/v1/nodes"] = object{"kind": "NodeList", "apiVersion": "v1", "items": list}
	if daemonSet != nil {
		metadata, _ := daemonSet["metadata"].(object)
		answers[fmt.Sprint("/apis/apps/v1/namespaces/gpumem-system/daemonsets/", metadata["name"])] = daemonSet
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, found := answers[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if !found {
			w.WriteHeader(http.StatusNotFound)
			answer = object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": http.StatusNotFound}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return []string{"--dry-run=server", "--kube-apiserver", server.URL, "--kube-token", "none"}
}

// chartWithNotes copies the chart and renders its notes as an object.
func chartWithNotes(t *testing.T) string {
	t.Helper()
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	text := "notes: |\n{{ include (print .Template.BasePath \"/NOTES.txt\") . | indent 2 }}\n"
	if err := os.WriteFile(filepath.Join(copied, "templates/notes.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return copied
}

// pod returns a pod of namespace ml as the API server returns it.
func pod(name, scheduler, phase, resource string) map[string]any {
	return map[string]any{
		"kind": "Pod", "apiVersion": "v1", "metadata": map[string]any{"namespace": "ml", "name": name},
		"spec": map[string]any{"schedulerName": scheduler, "containers": []map[string]any{
			{"name": "proxy"}, {"name": "main", "resources": map[string]any{"limits": map[string]any{resource: "3"}}},
		}},
		"status": map[string]any{"phase": phase},
	}
}

// TestNotesCountPodsOfOtherSchedulers renders the notes with the pods of a cluster.
func TestNotesCountPodsOfOtherSchedulers(t *testing.T) {
	const memory = "gpumem.dev/gpu-mem"
	pods := []map[string]any{
		pod("ours", "gpumem-scheduler", "Running", memory), pod("waits", "default-scheduler", "Pending", memory), pod("batch", "volcano", "Running", memory),
		pod("done", "default-scheduler", "Succeeded", memory), pod("dead", "default-scheduler", "Failed", memory), pod("other", "default-scheduler", "Running", "nvidia.com/gpu"),
		pod("none", "default-scheduler", "Running", "cpu"), pod("share", "default-scheduler", "Running", "gpumem.dev/gpu-share"),
	}
	const want = "WARNING: 3 pod(s) with GPU memory name another scheduler, which does not know single GPUs: ml/waits, ml/batch, ml/share.\n" +
		"  Recreate them with schedulerName: gpumem-scheduler.\n"
	noted := chartWithNotes(t)
	for name, tc := range map[string]struct {
		nodes int
		pods  []map[string]any
		flags []string
		want  string // empty: no warning
	}{
		"some":                    {nodes: 3, pods: pods, want: want},
		"none":                    {nodes: 3, pods: pods[:1]},
		"a large cluster":         {nodes: 501, pods: pods},
		"one without a scheduler": {nodes: 3, pods: pods, flags: []string{"--set", "scheduler.mode=existing,extender.tls.source=cert-manager"}},
	} {
		t.Run(name, func(t *testing.T) {
			flags := append(apiServer(t, tc.nodes, tc.pods, nil), "--kube-version", "v1.36.3", "--show-only", "templates/notes.yaml")
			text, err := render(t, noted, append(flags, tc.flags...)...)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text, tc.want) || (tc.want == "") == strings.Contains(text, "name another scheduler") {
				t.Errorf("the notes lack %q:\n%s", tc.want, text)
			}
		})
	}
}

// TestNotesEndWithAFirstPod reads the pod that the notes recommend to apply.
func TestNotesEndWithAFirstPod(t *testing.T) {
	for name, tc := range map[string]struct {
		values, resource, scheduler string
		look                        string // arguments of the last command
		flags                       []string
	}{
		"default":           {"default", "gpumem.dev/gpu-mem", "gpumem-scheduler", "pods first", nil},
		"custom":            {"custom", "gpu.example.com/gpu-mem", "shared-gpu", "pods first --resource-domain=gpu.example.com", nil},
		"another namespace": {"default", "gpumem.dev/gpu-mem", "gpumem-scheduler", "pods first --gpumem-namespace=gpus", []string{"--namespace", "gpus"}},
		"existing":          {"default", "gpumem.dev/gpu-mem", "", "pods first", []string{"--set", "scheduler.mode=existing,extender.tls.source=cert-manager"}},
	} {
		t.Run(name, func(t *testing.T) {
			flags := []string{"--kube-version", "v1.36.3", "--show-only", "templates/notes.yaml", "--values", filepath.Join(chart, "ci", tc.values+"-values.yaml")}
			text, err := render(t, chartWithNotes(t), append(flags, tc.flags...)...)
			if err != nil {
				t.Fatal(err)
			}
			var notes struct{ Notes string }
			if err := yaml.Unmarshal([]byte(text), &notes); err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(notes.Notes, "<<'END'\n")
			manifest, last, found := strings.Cut(rest, "\nEND\n")
			if !found || strings.TrimSpace(last) != "kubectl inspect gpumem "+tc.look {
				t.Fatalf("the notes end with:\n%s", rest)
			}
			var pod v1.Pod
			if err := yaml.UnmarshalStrict([]byte(manifest), &pod); err != nil {
				t.Fatal(err)
			}
			if got := pod.Spec.Containers[0].Resources.Limits[v1.ResourceName(tc.resource)]; got.Value() != 1 || pod.Spec.SchedulerName != tc.scheduler {
				t.Errorf("the pod requests %v of %s, scheduler %q", got.Value(), tc.resource, pod.Spec.SchedulerName)
			}
		})
	}
}

// TestNotesReportRemovedValues renders the notes with a value that has no effect any more.
func TestNotesReportRemovedValues(t *testing.T) {
	text, err := render(t, chartWithNotes(t), "--kube-version", "v1.36.3", "--show-only", "templates/notes.yaml", "--set", "devicePlugin.toolkitDir=/opt")
	if err != nil || !strings.Contains(text, "WARNING: devicePlugin.toolkitDir has no effect any more: remove it from your values.") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestUnitsDoNotChangeUnderPods upgrades a release whose device plugin has another unit.
func TestUnitsDoNotChangeUnderPods(t *testing.T) {
	installed := map[string]any{
		"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": map[string]any{"name": "gpumem-device-plugin"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []map[string]any{{"name": "p", "args": []string{"--unit-mib=512"}}}}}},
	}
	const refused = "unitMiB changes from 512 to 1024, and pods that ask for gpumem.dev/gpu-mem are there (1: ml/runs)"
	runs, ended := pod("runs", "gpumem-scheduler", "Running", "gpumem.dev/gpu-mem"), pod("ended", "gpumem-scheduler", "Failed", "gpumem.dev/gpu-mem")
	for name, tc := range map[string]struct {
		pods []map[string]any
		want string
	}{"a pod runs": {[]map[string]any{runs, ended}, refused}, "all pods have ended": {[]map[string]any{ended}, ""}} {
		_, err := render(t, chart, append(apiServer(t, 1, tc.pods, installed), "--kube-version", "v1.36.3", "--is-upgrade")...)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: want %q, got %v", name, tc.want, err)
		}
	}
}

// TestPodsOfGPUShareStopTheInstallation renders the chart under gpushare's domain with a pod on a
// node of the device plugin.
func TestPodsOfGPUShareStopTheInstallation(t *testing.T) {
	const index, assumed, assignment, memory = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_ASSUME_TIME", "aliyun.com/assignment", "aliyun.com/gpu-mem"
	for name, tc := range map[string]struct {
		phase, resource string // default: Running, gpu-mem
		annotations     []string
		recorded        string // in the managed fields
		refused         bool
	}{
		"placed by gpushare":    {annotations: []string{index, assumed}, recorded: assumed, refused: true},
		"placed and ended":      {phase: "Succeeded", annotations: []string{index, assumed}, recorded: assumed},
		"without a GPU request": {resource: "cpu", annotations: []string{index, assumed}, recorded: assumed},
		"placed by gpumem 0.2":  {annotations: []string{index, assumed, assignment}},
		"placed by gpumem":      {annotations: []string{assignment}},
	} {
		t.Run(name, func(t *testing.T) {
			object := pod("old", "default-scheduler", cmp.Or(tc.phase, "Running"), cmp.Or(tc.resource, memory))
			annotations := make(map[string]any)
			for _, key := range tc.annotations {
				annotations[key] = "0"
			}
			metadata, _ := object["metadata"].(map[string]any)
			metadata["annotations"] = annotations
			metadata["managedFields"] = []any{map[string]any{"fieldsV1": map[string]any{"f:metadata": map[string]any{"f:annotations": map[string]any{"f:" + tc.recorded: map[string]any{}}}}}}
			spec, _ := object["spec"].(map[string]any)
			spec["nodeName"] = "node"
			_, err := render(t, chart, append(apiServer(t, 1, []map[string]any{object}, nil), "--kube-version", "v1.36.3", "--set", "resourceDomain=aliyun.com")...)
			const want = "gpushare placed pods on nodes of the device plugin (1: ml/old)"
			if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("refused: want %t, got %v", tc.refused, err)
			}
		})
	}
}

// TestClientsOfMPSProtocol3StopTheUpgrade renders the chart with a pod on a node whose inventory version 0.2 wrote.
func TestClientsOfMPSProtocol3StopTheUpgrade(t *testing.T) {
	daemon := map[string]any{"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": map[string]any{"name": "gpumem-mps"}}
	const (
		three = `{"v":1,"unitMiB":1024,"enforcement":"mps","mps":3,"gpus":[]}`
		two   = `{"v":1,"unitMiB":1024,"enforcement":"mps","mps":2,"gpus":[]}`
		claim = `{"v":1,"unitMiB":1024,"enforcement":"mps","mps":3,"gpus":[],"given":[{"uid":"u","pod":"ml/serve","gpus":[[0,3,0]]}]}`
		want  = "Pods are clients of MPS protocol 3, which gpumem no longer runs, and could not start again (1: ml/serve): delete them and the MPS daemon of their nodes first"
	)
	for name, tc := range map[string]struct {
		inventory, level, phase string // default phase: Running
		noDaemon                bool
		flags                   []string
		refused                 bool
	}{
		"limited by MPS":            {inventory: three, level: "mps", refused: true},
		"limited by the driver too": {inventory: three, level: "kernel", refused: true},
		"by a claim":                {inventory: claim, refused: true},
		"before the daemon":         {inventory: three, level: "advisory"},
		"without a GPU":             {inventory: three},
		"ended":                     {inventory: three, level: "mps", phase: "Failed"},
		"protocol 2":                {inventory: two, level: "mps"},
		"no daemon any more":        {inventory: three, level: "mps", noDaemon: true},
		"the user insists":          {inventory: three, level: "mps", flags: []string{"--set", "allowChangesUnderPods=true"}},
	} {
		t.Run(name, func(t *testing.T) {
			object := pod("serve", "gpumem-scheduler", cmp.Or(tc.phase, "Running"), "gpumem.dev/gpu-mem")
			metadata, _ := object["metadata"].(map[string]any)
			if tc.level != "" {
				metadata["annotations"] = map[string]any{"gpumem.dev/assignment": fmt.Sprintf(`{"v":1,"unitMiB":1024,"enforcement":%q,"gpus":[]}`, tc.level)}
			}
			spec, _ := object["spec"].(map[string]any)
			spec["nodeName"] = "node"
			installed := daemon
			if tc.noDaemon {
				installed = nil
			}
			flags := append(apiServer(t, 1, []map[string]any{object}, installed, tc.inventory), "--kube-version", "v1.36.3", "--is-upgrade")
			_, err := render(t, chart, append(flags, tc.flags...)...)
			if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("refused: want %t, got %v", tc.refused, err)
			}
		})
	}
}

// TestNotesOnTheSchedulersName renders the notes for API servers with and without the policy.
func TestNotesOnTheSchedulersName(t *testing.T) {
	const (
		group = "admissionregistration.k8s.io/"
		sets  = "The API server sets this schedulerName in new pods that name no scheduler (admission.setSchedulerName).\n"
		gated = "If the feature gate MutatingAdmissionPolicy is on, the API server sets this schedulerName in new pods that name no scheduler (admission.setSchedulerName).\n"
		none  = "This cluster sets no schedulerName: every pod must name it (admission.setSchedulerName).\n"
	)
	noted := chartWithNotes(t)
	for _, tc := range []struct {
		version string
		kinds   []string
		want    string
	}{
		{"v1.36.3", apis(group + "v1" + mutatingPolicy), sets},
		{"v1.35.8", apis(group + "v1beta1" + mutatingPolicy), gated},
		{"v1.35.8", apis(), none},
	} {
		text, err := render(t, noted, append([]string{"--kube-version", tc.version, "--show-only", "templates/notes.yaml"}, tc.kinds...)...)
		if err != nil || !strings.Contains(text, "  "+tc.want) {
			t.Errorf("%s: %v: the notes lack %q:\n%s", tc.version, err, tc.want, text)
		}
	}
}

// TestTemplatesWithoutSchedulerGetAWarning renders the policy that warns. It must exempt templates
// only if the API server is certain to set the name in their pods.
func TestTemplatesWithoutSchedulerGetAWarning(t *testing.T) {
	const group = "admissionregistration.k8s.io/"
	for version, exempt := range map[string]bool{"v1": true, "v1beta1": false} {
		flags := append([]string{"--kube-version", "v1.36.3", "--show-only", "templates/admission/names.yaml"}, apis(group+version+mutatingPolicy)...)
		text, err := render(t, chart, flags...)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text, ".hasValue() || !variables.containers"); got != exempt {
			t.Errorf("%s: templates are exempt: %t, want %t", version, got, exempt)
		}
	}
}
