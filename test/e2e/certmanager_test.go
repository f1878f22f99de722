package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/cluster"
)

// TestCertificatesFromCertManager: cert-manager's controllers make what the extender
// and the cluster's own kube-scheduler show one another, and make it again.
func TestCertificatesFromCertManager(t *testing.T) {
	if suite.cluster == nil {
		t.Skip(suite.why)
	}
	program, err := suite.cluster.CertManager(t.Context(), os.Stderr) // minutes the first time, which no test has
	if err != nil {
		t.Fatal(err)
	}
	e := setup(t)
	e.domain = servedDomain
	e.certManagerAPI()
	stop := e.startCertManager(program)
	e.installServed("extender.tls.source=cert-manager")
	e.atEnd(func() { // what cert-manager has made stays when the chart goes
		stop()
		if err := e.client.CoreV1().Secrets(servedNamespace).DeleteCollection(e.ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "type=" + string(v1.SecretTypeTLS)}); err != nil {
			t.Error(err)
		}
	})
	e.secret(servedExtender+"-client", "")
	credentials := e.schedulerCredentials()
	e.startServedScheduler(credentials)
	e.create(e.ofServed("first", 2))
	e.placed("first")

	for _, name := range []string{servedExtender + "-client", servedExtender + "-tls"} {
		before := e.secret(name, "")
		if err := e.client.CoreV1().Secrets(servedNamespace).Delete(e.ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.secret(name, before.UID)
	}
	renewed := e.schedulerCredentials()
	for name, folder := range map[string]string{"that was renewed": renewed, "from before": credentials} {
		if err := e.reach(fromFolder(folder)...); err != nil {
			t.Errorf("with the certificate %s: %v", name, err)
		}
	}
	for _, pod := range e.servedPods() {
		if n := pod.Status.ContainerStatuses[0].RestartCount; n > 0 {
			t.Errorf("%s has restarted %d times", pod.Name, n)
		}
	}
}

// secret waits for a certificate in a Secret other than that one.
func (e *env) secret(name string, other types.UID) (secret *v1.Secret) {
	e.Helper()
	e.eventually("there is a certificate in "+name, func() (bool, string) {
		var err error
		secret, err = e.client.CoreV1().Secrets(servedNamespace).Get(e.ctx, name, metav1.GetOptions{})
		return err == nil && secret.UID != other && len(secret.Data["tls.crt"]) > 0, fmt.Sprint(err)
	})
	return secret
}

// certManagerAPI makes cert-manager's kinds known to the API server until the test
// ends.
func (e *env) certManagerAPI() {
	e.Helper()
	crds, err := cluster.CertManagerCRDs(e.ctx)
	if err != nil {
		e.Fatal(err)
	}
	var files []string
	for _, kind := range []string{"issuers", "clusterissuers", "certificates", "certificaterequests"} {
		files = append(files, "--filename="+filepath.Join(crds, "cert-manager.io_"+kind+".yaml"))
	}
	e.atEnd(func() {
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, append([]string{"delete", "--timeout=1m"}, files...)...); err != nil {
			e.Error(err)
		}
	})
	for _, args := range [][]string{{"create"}, {"wait", "--for=condition=Established", "--timeout=1m"}} {
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, append(args, files...)...); err != nil {
			e.Fatal(err)
		}
	}
}

// startCertManager runs cert-manager's controllers with all rights, until the test
// ends or they are stopped.
func (e *env) startCertManager(program string) (stop func()) {
	e.Helper()
	log, err := os.Create(filepath.Join(e.TempDir(), "cert-manager.log"))
	if err != nil {
		e.Fatal(err)
	}
	cmd := exec.Command(program, "--kubeconfig="+e.cluster.Kubeconfig())
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		e.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return // it was stopped before
		}
		if err := <-ended; err != nil {
			e.Errorf("cert-manager: %v", err)
		}
	}
	e.Cleanup(func() {
		stop()
		if e.Failed() {
			text, err := os.ReadFile(log.Name())
			e.Logf("cert-manager: %v\n%s", err, text)
		}
		log.Close()
	})
	return stop
}
