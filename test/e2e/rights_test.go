package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpumem/gpumem/test/stack"
)

// auditPolicy has the API server write down what gpumem's accounts ask of it.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:` + stack.Namespace + `", "system:serviceaccounts:` + servedNamespace + `", "system:serviceaccounts:` + otherNamespace + `", "system:serviceaccounts:` + heirNamespace + `"]
  - level: None
`

// attacker is the client that tries what must be refused; it is not gpumem.
const attacker = "attacker"

// A right is one thing that an account may do.
type right struct{ account, group, resource, verb string }

func (r right) String() string {
	return fmt.Sprintf("%s: %s %s (API group %q)", r.account, r.verb, r.resource, r.group)
}

// An auditEvent is what is read here of a line of the audit log.
type auditEvent struct {
	Verb, UserAgent string
	User            struct{ Username string }
	ObjectRef       *struct{ APIGroup, Resource, Subresource, Namespace string }
	Annotations     map[string]string
	Received        time.Time `json:"requestReceivedTimestamp"`
}

func (a auditEvent) right() right {
	r := right{account: a.User.Username, verb: a.Verb}
	if a.ObjectRef != nil {
		r.group, r.resource = a.ObjectRef.APIGroup, a.ObjectRef.Resource
		if a.ObjectRef.Subresource != "" {
			r.resource += "/" + a.ObjectRef.Subresource
		}
	}
	return r
}

// checkRights says what gpumem has asked for without having the right to and,
// after a run of all tests, which of the rights that the chart gives to gpumem's
// own programs none of them has used.
func checkRights(ctx context.Context) error {
	_, used, err := readAuditLog(suite.cluster.AuditLog(), time.Time{})
	if err != nil {
		return err
	}
	denied, _, err := readAuditLog(suite.cluster.AuditLog(), suite.since)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range sorted(denied) {
		// What belongs to other releases ends while these are taken away.
		if strings.Contains(r.account, ":"+stack.Namespace+":") {
			errs = append(errs, fmt.Errorf("denied: %s", r))
		}
	}
	if run := flag.Lookup("test.run"); run != nil && run.Value.String() != "" {
		return errors.Join(errs...)
	}
	given, err := rightsOfChart(ctx, suite.cluster.Client())
	if err != nil {
		return err
	}
	for _, r := range sorted(given) {
		// A watch brings the first list with it, on an API server that is new enough.
		watches := r
		watches.verb = "watch"
		if r.verb == "list" && used[watches] || rare(r) {
			continue
		}
		if !used[r] {
			errs = append(errs, fmt.Errorf("given and never used: %s", r))
		}
	}
	if len(given) == 0 {
		errs = append(errs, errors.New("the chart gives no rights at all: nothing was checked"))
	}
	return errors.Join(errs...)
}

// rare reports whether a right is for what the tests do not bring about: a node
// of which the cache differs from the watch is read again, an event that comes again, to
// the word, is counted in the first, and kube-scheduler seldom leaves a pod waiting that
// fits (test/scheduler has it do so).
func rare(r right) bool {
	return (r.verb == "get" && r.resource == "nodes" || r.verb == "patch" && r.resource == "pods/status") && strings.HasSuffix(r.account, ":gpumem-scheduler") ||
		r.verb == "patch" && r.resource == "events" && strings.HasSuffix(r.account, ":gpumem-device-plugin")
}

// nothingDenied checks that the accounts of a namespace have not asked for
// anything that they may not since a point in time: parts of an installation
// before it, under the same names, may have outlived their roles.
func (e *env) nothingDenied(namespace string, since time.Time) {
	e.Helper()
	denied, _, err := readAuditLog(e.cluster.AuditLog(), since)
	if err != nil {
		e.Fatal(err)
	}
	for _, r := range sorted(denied) {
		if strings.Contains(r.account, ":"+namespace+":") {
			e.Errorf("denied: %s", r)
		}
	}
}

func sorted(rights map[right]bool) []right {
	return slices.SortedFunc(maps.Keys(rights), func(a, b right) int { return strings.Compare(a.String(), b.String()) })
}

func readAuditLog(name string, since time.Time) (denied, used map[right]bool, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	denied, used = make(map[right]bool), make(map[right]bool)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		switch {
		case event.UserAgent == attacker, event.Received.Before(since):
		case event.Annotations["authorization.k8s.io/decision"] == "forbid":
			denied[event.right()] = true
		case strings.HasPrefix(event.UserAgent, "gpumem-"), event.right().resource == "leases":
			used[event.right()] = true
		}
	}
	return denied, used, lines.Err()
}

// rightsOfChart returns what the chart's own roles of the shared release give.
func rightsOfChart(ctx context.Context, client kubernetes.Interface) (map[right]bool, error) {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + stack.Release}
	clusterRoles, err := client.RbacV1().ClusterRoles().List(ctx, options)
	if err != nil {
		return nil, err
	}
	roles, err := client.RbacV1().Roles(stack.Namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	rules := make(map[string][]rbacv1.PolicyRule) // by the name of the role, which is that of the account
	for _, role := range clusterRoles.Items {
		rules[role.Name] = append(rules[role.Name], role.Rules...)
	}
	for _, role := range roles.Items {
		rules[role.Name] = append(rules[role.Name], role.Rules...)
	}
	given := make(map[right]bool)
	for name, of := range rules {
		if name == stack.Release+"-viewer" {
			continue // for people: no program has it
		}
		for _, rule := range of {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						given[right{"system:serviceaccount:" + stack.Namespace + ":" + name, group, resource, verb}] = true
					}
				}
			}
		}
	}
	return given, nil
}

// TestThePluginIsHeldToItsNode sends writes with the token of one node's plugin. The cases show that the
// token names the node, that the policy matches each resource, and that RBAC forbids the rest. Which
// changes the policy refuses is in test/policies.
func TestThePluginIsHeldToItsNode(t *testing.T) {
	e := setup(t)
	e.create(e.pod("here", 1, onNode("node1")))
	e.create(e.pod("elsewhere", 1, onNode("node2")))
	e.running("here")
	e.running("elsewhere")
	client := e.asPluginOf("node1")
	node := func(name, patch string) func() error {
		return func() error {
			_, err := client.CoreV1().Nodes().Patch(e.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	pod := func(name, patch string) func() error {
		return func() error {
			_, err := client.CoreV1().Pods(e.namespace).Patch(e.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	for name, do := range map[string]func() error{
		"its own annotation of its node":  node("node1", `{"metadata":{"annotations":{"gpumem.dev/inventory":null}}}`), // it comes back
		"its own annotation of its pod":   pod("here", `{"metadata":{"annotations":{"gpumem.dev/gpu-index":"tried"}}}`),
		"an annotation that is as it was": pod("here", `{"metadata":{"annotations":{}}}`),
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	const elsewhere, others, more = "of node node1 may not change", "may change its own annotations and no others", "may change annotations, conditions and its own labels and nothing else"
	const status = "may change its own condition of its node's status and nothing else"
	nodeStatus := func(name, patch string) func() error {
		return func() error {
			_, err := client.CoreV1().Nodes().PatchStatus(e.ctx, name, []byte(patch))
			return err
		}
	}
	for name, tc := range map[string]struct {
		do   func() error
		want string
	}{
		"the inventory of another node":   {node("node2", `{"metadata":{"annotations":{"gpumem.dev/inventory":"{}"}}}`), elsewhere},
		"a pod of another node":           {pod("elsewhere", `{"metadata":{"annotations":{"gpumem.dev/assignment":"{}"}}}`), elsewhere},
		"what people write on its node":   {node("node1", `{"metadata":{"annotations":{"gpumem.dev/cordoned-gpus":"GPU-1"}}}`), others},
		"what its pod asks for":           {pod("here", `{"metadata":{"annotations":{"gpumem.dev/policy":"spread"}}}`), others},
		"a label of its node":             {node("node1", `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`), more},
		"a pod that it creates":           {func() error { return e.createAs(client, e.pod("mine", 0)) }, "cannot create resource"},
		"a pod that it evicts or deletes": {func() error { return client.CoreV1().Pods(e.namespace).Delete(e.ctx, "here", metav1.DeleteOptions{}) }, "cannot delete resource"},
		"a Secret": {func() error {
			_, err := client.CoreV1().Secrets(stack.Namespace).List(e.ctx, metav1.ListOptions{})
			return err
		}, "cannot list resource"},
		"whether its node is ready":      {nodeStatus("node1", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`), status},
		"its condition, of another node": {nodeStatus("node2", `{"status":{"conditions":[{"type":"GPUMemoryHealthy","status":"False"}]}}`), elsewhere},
	} {
		if err := tc.do(); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%s: %v, want it refused with %q", name, err, tc.want)
		}
	}
}

// asPluginOf returns a client with the token that the plugin of a node has.
func (e *env) asPluginOf(node string) kubernetes.Interface {
	e.Helper()
	pods, err := e.client.CoreV1().Pods(stack.Namespace).List(e.ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=device-plugin", FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil || len(pods.Items) != 1 {
		e.Fatalf("plugins of %s: %v, %v", node, pods, err)
	}
	pod := pods.Items[0]
	token, err := e.client.CoreV1().ServiceAccounts(stack.Namespace).CreateToken(e.ctx, pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	admin, err := e.cluster.RESTConfig()
	if err != nil {
		e.Fatal(err)
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken, config.UserAgent = token.Status.Token, attacker
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		e.Fatal(err)
	}
	return client
}
