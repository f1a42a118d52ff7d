// Command probe is the harness's own test subject, both ends of it.
//
//	probe serve PORT            tells whoever connects its host name and how often it was started
//	probe until ADDRESS NAME    connects again and again until a host called NAME answers; prints how
//	                            many milliseconds that took
//	probe reach ADDRESS         connects once, within two seconds
//
// `serve` also counts its starts in /data/starts where that directory can be written, so that a
// test sees whether a volume was kept or is fresh.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How long `until` tries: far above the fraction of a second that it measures.
const patience = 30 * time.Second

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err = serve(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "until":
		err = until(os.Args[2], os.Args[3])
	case len(os.Args) == 3 && os.Args[1] == "reach":
		_, err = net.DialTimeout("tcp", os.Args[2], 2*time.Second)
	default:
		err = fmt.Errorf("usage: probe serve PORT | probe until ADDRESS NAME | probe reach ADDRESS")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func serve(port string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; os.Exit(0) }()

	name, err := os.Hostname()
	if err != nil {
		return err
	}
	starts, err := countStart("/data/starts")
	if err != nil {
		fmt.Println("no volume:", err)
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintf(connection, "%s %d\n", name, starts)
		connection.Close()
	}
}

func countStart(path string) (int, error) {
	before, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return 0, err
	}
	starts, _ := strconv.Atoi(strings.TrimSpace(string(before)))
	starts++
	return starts, os.WriteFile(path, []byte(strconv.Itoa(starts)), 0o644)
}

func until(address, name string) error {
	begin := time.Now()
	last := "nobody"
	for time.Since(begin) < patience {
		answer, err := ask(address)
		if err == nil && strings.HasPrefix(answer, name+" ") {
			fmt.Printf("%d ms: %s\n", time.Since(begin).Milliseconds(), answer)
			return nil
		}
		if last = answer; err != nil {
			last = err.Error()
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("%s was not answered by %s within %s; last: %s", address, name, patience, last)
}

func ask(address string) (string, error) {
	connection, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(time.Second))
	answer, err := io.ReadAll(connection)
	return strings.TrimSpace(string(answer)), err
}
