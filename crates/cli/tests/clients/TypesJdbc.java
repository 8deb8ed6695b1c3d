import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Struct;
import java.sql.Time;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/**
 * Prints what a JDBC driver makes of the first column of queries.
 *
 * <pre>java -cp DRIVER.jar TypesJdbc.java URL USER PASSWORD &lt; QUERIES</pre>
 *
 * A line of QUERIES is a name, a tab and a statement. A line of the output has the name, the class that getObject returns, the
 * driver's name of the type, and the values, divided by tabs; or the name, an empty class, and an error. Without a USER, the URL has the login.
 */
public class TypesJdbc {
    public static void main(String[] arguments) throws Exception {
        Properties login = new Properties();
        if (!arguments[1].isEmpty()) {
            login.put("user", arguments[1]);
            login.put("password", arguments[2]);
        }
        var out = new java.io.PrintStream(System.out, true, StandardCharsets.UTF_8);
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Connection connection = DriverManager.getConnection(arguments[0], login)) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] query = line.split("\t", 2);
                out.println(query[0] + "\t" + String.join("\t", answer(connection, query[1])));
            }
        }
    }

    private static List<String> answer(Connection connection, String sql) {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery(sql)) {
            String shown = "";
            List<String> values = new ArrayList<>();
            while (rows.next()) {
                Object value = rows.getObject(1);
                if (value != null) {
                    shown = value.getClass().getSimpleName();
                }
                values.add(oneLine(text(rows, value)));
            }
            values.add(0, rows.getMetaData().getColumnTypeName(1));
            values.add(0, shown);
            return values;
        } catch (SQLException | RuntimeException error) {
            return List.of("", oneLine(error.getClass().getSimpleName() + ": " + error.getMessage()));
        }
    }

    private static String oneLine(String text) {
        return text.replace('\t', ' ').replace('\n', ' ');
    }

    /** A time with its time zone is an instant, one without is what a clock shows: in any zone of this machine. */
    private static String text(ResultSet rows, Object value) throws SQLException {
        if (value instanceof Timestamp timestamp) {
            String type = rows.getMetaData().getColumnTypeName(1).toLowerCase();
            boolean instant = type.equals("timestamptz") || type.contains("zone");
            return instant ? timestamp.toInstant().toString() : timestamp.toLocalDateTime().toString();
        }
        return text(value);
    }

    private static String text(Object value) throws SQLException {
        if (value == null) {
            return "NULL";
        } else if (value instanceof byte[] bytes) {
            return HexFormat.of().formatHex(bytes);
        } else if (value instanceof BigDecimal number) {
            return number.toPlainString();
        } else if (value instanceof Timestamp timestamp) {
            return timestamp.toLocalDateTime().toString();
        } else if (value instanceof Time time) {
            // Milliseconds: toLocalTime has seconds only.
            return time.toLocalTime().plusNanos(Math.floorMod(time.getTime(), 1000L) * 1_000_000L).toString();
        } else if (value instanceof Array array) {
            return text(array.getArray());
        } else if (value instanceof Object[] items) {
            return list(Arrays.asList(items));
        } else if (value instanceof Struct struct) {
            return text(struct.getAttributes());
        } else if (value instanceof List<?> items) {
            return list(items);
        } else if (value instanceof Map<?, ?> map) {
            List<String> entries = new ArrayList<>();
            for (var entry : map.entrySet()) {
                entries.add(text(entry.getKey()) + ": " + text(entry.getValue()));
            }
            return "{" + String.join(", ", entries) + "}";
        }
        return value.toString();
    }

    private static String list(List<?> items) throws SQLException {
        List<String> texts = new ArrayList<>();
        for (Object item : items) {
            texts.add(text(item));
        }
        return "[" + String.join(", ", texts) + "]";
    }
}
