import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.sql.Connection;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Struct;
import java.sql.Time;
import java.sql.Timestamp;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Calendar;
import java.util.GregorianCalendar;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;

/**
 * Prints what a JDBC driver makes of the first column of queries.
 *
 * <pre>java -cp DRIVER.jar TypesJdbc.java URL USER PASSWORD &lt; QUERIES</pre>
 *
 * A line of QUERIES is a name, a tab and a statement, and may have a parameter: a tab, a class, a tab and a text. A line of the output
 * has the name, the class that getObject returns, the driver's name of the type, and the values, divided by tabs; or the name, an empty
 * class, and an error. NULL is \N; tabs, newlines and backslashes in values are written with a backslash; items of lists are JSON. Without
 * a USER, the URL has the login.
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
                String[] query = line.split("\t", 4);
                out.println(query[0] + "\t" + String.join("\t", answer(connection, query)));
            }
        }
    }

    private static ResultSet execute(Statement statement, String[] query) throws SQLException {
        if (statement instanceof PreparedStatement prepared) {
            prepared.setObject(1, parameter(query[2], query[3]));
            return prepared.executeQuery();
        }
        return statement.executeQuery(query[1]);
    }

    /** An object of a class, from its text. */
    private static Object parameter(String name, String text) {
        return switch (name) {
            case "Boolean" -> Boolean.valueOf(text);
            case "Byte" -> Byte.valueOf(text);
            case "Short" -> Short.valueOf(text);
            case "Integer" -> Integer.valueOf(text);
            case "Long" -> Long.valueOf(text);
            case "Float" -> Float.valueOf(text);
            case "Double" -> Double.valueOf(text);
            case "BigDecimal" -> new BigDecimal(text);
            case "String" -> text;
            case "byte[]" -> HexFormat.of().parseHex(text);
            case "Date" -> Date.valueOf(text);
            case "Time" -> Time.valueOf(text);
            case "Timestamp" -> Timestamp.valueOf(text);
            case "LocalDate" -> LocalDate.parse(text);
            case "LocalTime" -> LocalTime.parse(text);
            case "LocalDateTime" -> LocalDateTime.parse(text);
            case "OffsetDateTime" -> OffsetDateTime.parse(text);
            case "UUID" -> UUID.fromString(text);
            case "null" -> null;
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static List<String> answer(Connection connection, String[] query) {
        try (Statement statement =
                        query.length > 2 ? connection.prepareStatement(query[1]) : connection.createStatement();
                ResultSet rows = execute(statement, query)) {
            String shown = "";
            List<String> values = new ArrayList<>();
            while (rows.next()) {
                Object value = rows.getObject(1);
                if (value != null) {
                    shown = value.getClass().getSimpleName();
                }
                values.add(value == null ? "\\N" : oneLine(text(rows, value)));
            }
            values.add(0, rows.getMetaData().getColumnTypeName(1));
            values.add(0, shown);
            return values;
        } catch (SQLException | RuntimeException | AssertionError | LinkageError error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return List.of("", oneLine(cause.getClass().getSimpleName() + ": " + cause.getMessage()));
        }
    }

    private static String oneLine(String text) {
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n");
    }

    /** A time with its time zone is an instant, one without is what a clock shows: in any zone of this machine. */
    private static String text(ResultSet rows, Object value) throws SQLException {
        if (value instanceof Timestamp timestamp) {
            String type = rows.getMetaData().getColumnTypeName(1).toLowerCase();
            boolean instant = type.equals("timestamptz") || type.contains("zone");
            return instant ? timestamp.toInstant().toString() : local(timestamp).toString();
        }
        return text(value);
    }

    private static LocalDateTime local(Timestamp timestamp) {
        return day(timestamp).atTime(timestamp.toLocalDateTime().toLocalTime());
    }

    /** What a calendar shows; toString and toLocalDate have years of four digits, or without their era. */
    private static LocalDate day(java.util.Date date) {
        var calendar = new GregorianCalendar();
        calendar.setTime(date);
        int year = calendar.get(Calendar.YEAR);
        boolean before = calendar.get(Calendar.ERA) == GregorianCalendar.BC;
        return LocalDate.of(before ? 1 - year : year, calendar.get(Calendar.MONTH) + 1, calendar.get(Calendar.DAY_OF_MONTH));
    }

    private static String text(Object value) throws SQLException {
        if (value == null) {
            return "NULL";
        } else if (value instanceof byte[] bytes) {
            return HexFormat.of().formatHex(bytes);
        } else if (value instanceof BigDecimal number) {
            return number.toPlainString();
        } else if (value instanceof Timestamp timestamp) {
            return local(timestamp).toString();
        } else if (value instanceof Date date) {
            return day(date).toString();
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
                entries.add(quoted(text(entry.getKey())) + ": " + json(entry.getValue()));
            }
            return "{" + String.join(", ", entries) + "}";
        }
        return value.toString();
    }

    private static String list(List<?> items) throws SQLException {
        List<String> texts = new ArrayList<>();
        for (Object item : items) {
            texts.add(json(item));
        }
        return "[" + String.join(", ", texts) + "]";
    }

    private static String json(Object item) throws SQLException {
        if (item == null) {
            return "null";
        } else if (item instanceof Number || item instanceof Boolean) {
            return item.toString();
        }
        boolean nested = item instanceof Array
                || item instanceof Struct
                || item instanceof List
                || item instanceof Map
                || (item instanceof Object[]);
        return nested ? text(item) : quoted(text(item));
    }

    private static String quoted(String text) {
        var json = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter < ' ' || letter == '"' || letter == '\\') {
                json.append(String.format("\\u%04x", (int) letter));
            } else {
                json.append(letter);
            }
        }
        return json.append('"').toString();
    }
}
