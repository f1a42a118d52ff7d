import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Address;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.ShutdownSignalException;
import com.rabbitmq.client.impl.recovery.AutorecoveringConnection;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/** RabbitMQ's Java client on its own: automatic recovery of connections and of all that was declared on them. */
public final class ClientProgram {
    private static final String NEWS = "client.news", TOPICS = "client.topics", WORK = "client.work", SHARED = "client.shared";
    private static final int MESSAGES = 400, DONE_AT_KILL = 60, AFTERWARDS = 50;
    private static final int CONFIRM_MS = 10_000;

    private final Story.Effects work = new Story.Effects();
    private final Set<String> news = ConcurrentHashMap.newKeySet(), shared = ConcurrentHashMap.newKeySet();
    private final Map<String, String> renamed = new ConcurrentHashMap<>();
    private final AtomicInteger recoveries = new AtomicInteger();
    private int republished;

    public static void main(String[] arguments) {
        try {
            new ClientProgram().run();
            Story.done();
        } catch (Exception | Error failed) {
            failed.printStackTrace();
            System.exit(1);
        }
        // The client's threads are no daemons where a recovery is still under way.
        System.exit(0);
    }

    private Connection connect(String name) throws IOException, TimeoutException {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setAutomaticRecoveryEnabled(true);
        factory.setTopologyRecoveryEnabled(true);
        factory.setNetworkRecoveryInterval(200);
        factory.setConnectionTimeout(5000);
        factory.setRequestedHeartbeat(10);
        Address[] addresses = Story.addresses().stream().map(Address::parseAddress).toArray(Address[]::new);
        return factory.newConnection(addresses, name);
    }

    private void run() throws Exception {
        Connection consuming = connect("consumer"), publishing = connect("publisher");
        ((Recoverable) consuming).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recovered) {
                recoveries.incrementAndGet();
            }

            @Override
            public void handleRecoveryStarted(Recoverable recovered) {}
        });
        ((AutorecoveringConnection) consuming).addQueueRecoveryListener(renamed::put);
        cancelled(consuming);
        String exclusive = consume(consuming);
        Channel publisher = publishing.createChannel();
        publisher.confirmSelect();

        List<String> published = new ArrayList<>();
        for (int number = 0; number < MESSAGES; number++) {
            if (number == MESSAGES / 2) {
                Story.await("work to be done", () -> work.size() >= DONE_AT_KILL && news.size() >= DONE_AT_KILL);
                Story.killPrimary();
            }
            String key = String.format("%03d", number);
            publish(publisher, "", WORK, key);
            publish(publisher, NEWS, "", "news/" + key);
            published.add(key);
        }
        if (Story.kills()) {
            Story.await("the recovery", () -> recoveries.get() > 0 && !now(exclusive).equals(exclusive));
        }
        Story.await("all work", () -> work.has(published));
        work.judge("work", published, republished);

        List<String> late = new ArrayList<>();
        for (int number = 0; number < AFTERWARDS; number++) {
            late.add("late/" + number);
            publish(publisher, NEWS, "", "late/" + number);
            publish(publisher, TOPICS, "eu.berlin", "late/" + number);
        }
        Story.await("the news by the recovered queue", () -> news.containsAll(late));
        Story.check("topology recovery", "the exclusive queue, its binding and its consumer", true, renamed);
        Story.await("the topics by two exchanges", () -> shared.containsAll(late));
        Story.check("topology recovery", "a binding of an exchange to another, and an auto-delete queue", true, "");
        Story.same("topology recovery", "each consumer is there once", consumers(consuming, WORK), 1L);
        if (Story.kills()) {
            Story.check("topology recovery", "the server gave another name", now(exclusive).startsWith("amq.gen-"), now(exclusive));
            Story.same("topology recovery", "and the old one is gone", exists(publishing, exclusive), 404);
        }
        Story.same("topology recovery", "another connection's exclusive queue is locked", exists(publishing, now(exclusive)), 405);
        consuming.close();
        Story.await("the auto-delete queue to go", () -> exists(publishing, SHARED) == 404);
        Story.check("topology recovery", "the auto-delete queue goes with its consumer", true, "");
        try (Channel channel = publishing.createChannel()) {
            Story.same("work", "nothing is left in the queue", channel.queueDeclarePassive(WORK).getMessageCount(), 0);
        }
        publishing.close();
    }

    /** What a queue that the server named is called after its recoveries. */
    private String now(String queue) {
        String name = queue;
        while (renamed.containsKey(name) && !renamed.get(name).equals(name)) {
            name = renamed.get(name);
        }
        return name;
    }

    /** The consumers that shall come back by themselves. Returns the name of the queue that the server named. */
    private String consume(Connection connection) throws IOException {
        Channel channel = connection.createChannel();
        channel.basicQos(10);
        channel.queueDeclare(WORK, true, false, false, null);
        channel.basicConsume(WORK, false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                throws IOException {
                // Work, so that the kill finds some left.
                pause(8);
                work.add(text(body), envelope.isRedeliver());
                try {
                    getChannel().basicAck(envelope.getDeliveryTag(), false);
                } catch (AlreadyClosedException lost) {
                    Story.log("not acknowledged: " + lost.getMessage());
                }
            }
        });

        Channel second = connection.createChannel();
        second.exchangeDeclare(NEWS, "fanout", true);
        String exclusive = second.queueDeclare().getQueue();
        second.queueBind(exclusive, NEWS, "");
        second.basicConsume(exclusive, true, (tag, delivery) -> news.add(text(delivery.getBody())), tag -> {});

        second.exchangeDeclare(TOPICS, "topic", true);
        second.exchangeDeclare(TOPICS + ".eu", "fanout", false, true, null);
        second.exchangeBind(TOPICS + ".eu", TOPICS, "eu.#");
        second.queueDeclare(SHARED, false, false, true, null);
        second.queueBind(SHARED, TOPICS + ".eu", "");
        second.basicConsume(SHARED, true, (tag, delivery) -> shared.add(text(delivery.getBody())), tag -> {});
        return exclusive;
    }

    /** Returns once it is confirmed; what has no answer is published again. */
    private void publish(Channel channel, String exchange, String key, String body) throws Exception {
        long deadline = System.nanoTime() + Story.PATIENCE.toNanos();
        while (true) {
            boolean sent = false;
            try {
                channel.basicPublish(exchange, key, true, MessageProperties.PERSISTENT_BASIC, body.getBytes(StandardCharsets.UTF_8));
                sent = true;
                channel.waitForConfirmsOrDie(CONFIRM_MS);
                return;
            } catch (IOException | ShutdownSignalException | TimeoutException lost) {
                republished += sent ? 1 : 0;
                Story.log("publishes again: " + lost);
                if (System.nanoTime() > deadline) {
                    throw lost;
                }
                pause(50);
            }
        }
    }

    /** A queue is deleted under its consumer, who hears of it. */
    private static void cancelled(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        channel.queueDeclare("client.doomed", true, false, false, null);
        AtomicReference<String> told = new AtomicReference<>();
        String tag = channel.basicConsume("client.doomed", true, (t, delivery) -> {}, told::set);
        try (Channel other = connection.createChannel()) {
            other.queueDelete("client.doomed");
        }
        Story.await("the cancel", () -> told.get() != null);
        Story.same("consumer cancelled", "where its queue is deleted", told.get(), tag);
        channel.close();
    }

    private static long consumers(Connection connection, String queue) throws Exception {
        try (Channel channel = connection.createChannel()) {
            return channel.consumerCount(queue);
        }
    }

    /** 0, or what the broker says against a passive declare. */
    private static int exists(Connection connection, String queue) {
        // A channel that the broker has closed is closed already, which `close` does not mind.
        try (Channel channel = connection.createChannel()) {
            channel.queueDeclarePassive(queue);
            return 0;
        } catch (IOException | TimeoutException error) {
            if (error.getCause() instanceof ShutdownSignalException signal
                && signal.getReason() instanceof AMQP.Channel.Close close) {
                return close.getReplyCode();
            }
            throw new IllegalStateException(error);
        }
    }

    private static void pause(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }
}
