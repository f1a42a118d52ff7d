import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.BooleanSupplier;

/** What a program tells its runner: the words of {@code python/program.py}, for the programs in Java. Knows no AMQP. */
final class Story {
    /** How long anything may take that is waited for. */
    static final Duration PATIENCE = Duration.ofSeconds(45);

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final JsonNode GIVEN = given();
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Story() {}

    private static JsonNode given() {
        try {
            return JSON.readTree(System.getenv("UNDERSTUDY_PROGRAM"));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static List<String> addresses() {
        List<String> addresses = new ArrayList<>();
        GIVEN.get("addresses").forEach(address -> addresses.add(address.asText()));
        return addresses;
    }

    /** On RabbitMQ nobody is killed. */
    static boolean kills() {
        return GIVEN.get("kills").asBoolean();
    }

    private static synchronized void tell(Map<String, Object> report) {
        try {
            System.out.println(JSON.writeValueAsString(report));
            System.out.flush();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static void check(String scene, String what, boolean ok, Object detail) {
        tell(Map.of("scene", scene, "check", what, "ok", ok, "detail", String.valueOf(detail)));
    }

    static void same(String scene, String what, Object got, Object expected) {
        boolean ok = Objects.equals(got, expected);
        check(scene, what, ok, ok ? "" : "expected " + expected + ", got " + got);
    }

    static void killPrimary() throws IOException {
        tell(Map.of("kill", true));
        if (IN.readLine() == null) {
            throw new IOException("the runner is gone");
        }
    }

    static void done() {
        tell(Map.of("done", true));
    }

    static void log(String text) {
        System.err.println(text);
    }

    static void await(String what, BooleanSupplier condition) throws InterruptedException {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not within " + PATIENCE + ": " + what);
            }
            Thread.sleep(20);
        }
    }

    /** What was done for which key, and whether the broker had said that it may have been delivered before. */
    static final class Effects {
        private final Map<String, List<Boolean>> byKey = new TreeMap<>();

        synchronized void add(String key, boolean redelivered) {
            byKey.computeIfAbsent(key, absent -> new ArrayList<>()).add(redelivered);
        }

        synchronized int size() {
            return byKey.size();
        }

        synchronized boolean has(Collection<String> keys) {
            return byKey.keySet().containsAll(keys);
        }

        synchronized Set<String> keys() {
            return new TreeSet<>(byKey.keySet());
        }

        synchronized List<Boolean> of(String key) {
            return List.copyOf(byKey.getOrDefault(key, List.of()));
        }

        /** Every key at least once and no other; what came again was marked, or its publisher never heard of the first. */
        synchronized void judge(String scene, Collection<String> expected, long republished) {
            Set<String> lost = new TreeSet<>(expected);
            lost.removeAll(byKey.keySet());
            check(scene, "nothing confirmed is lost", lost.isEmpty(), lost.isEmpty() ? "all of " + expected.size() : lost);
            Set<String> foreign = new TreeSet<>(byKey.keySet());
            foreign.removeAll(Set.copyOf(expected));
            check(scene, "nothing came from nowhere", foreign.isEmpty(), foreign);
            Map<String, List<Boolean>> repeated = new LinkedHashMap<>();
            byKey.forEach((key, marks) -> {
                if (marks.size() > 1) {
                    repeated.put(key, marks);
                }
            });
            long again = repeated.values().stream().mapToLong(marks -> marks.size() - 1).sum();
            // Of those for one key one is the first. A mark may be on that one too.
            long unmarked = repeated.values().stream()
                .mapToLong(marks -> Math.max(0, marks.stream().filter(mark -> !mark).count() - 1)).sum();
            boolean allowed = unmarked <= republished && (kills() || again == 0);
            check(scene, "what came again was marked as redelivered, or published again", allowed,
                again + " again, " + unmarked + " unmarked, " + republished + " published again");
            tell(Map.of("scene", scene, "again", again));
        }
    }
}
