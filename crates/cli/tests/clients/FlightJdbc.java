import java.sql.Connection;
import java.sql.Date;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.ParameterMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

/**
 * Uses a server of Flight SQL with the JDBC driver, as tools do: the tree of tables, statements with parameters, types.
 *
 * <pre>
 * java --add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED \
 *     -cp flight-sql-jdbc-driver-18.3.0.jar FlightJdbc.java HOST PORT TOKEN [TARGET|- [CA.pem]]
 * </pre>
 *
 * TOKEN may be empty. With CA.pem it uses TLS. With TARGET, it also appends to that table, whose first two columns are an integer and a text.
 */
public class FlightJdbc {
    private static final String NAMES = "information_schema";

    public static void main(String[] arguments) throws Exception {
        String tls = arguments.length > 4 ? "true&tlsRootCerts=" + arguments[4] : "false";
        String url = "jdbc:arrow-flight-sql://" + arguments[0] + ":" + arguments[1] + "/?useEncryption=" + tls;
        String token = arguments[2];
        if (!token.isEmpty()) {
            refused(url, "wrong" + token);
        }
        Properties password = new Properties();
        password.put("user", "anybody");
        password.put("password", token);
        try (Connection connection = DriverManager.getConnection(url, password)) {
            List<String> tables = tree(connection.getMetaData());
            read(connection, tables);
            errors(connection);
        }
        Properties bearer = new Properties();
        if (!token.isEmpty()) {
            bearer.put("token", token);
        }
        try (Connection connection = DriverManager.getConnection(url, bearer)) {
            parameters(connection);
            if (arguments.length > 3 && !arguments[3].equals("-")) {
                write(connection, arguments[3]);
            }
        }
        System.out.println("FlightJdbc: all is well");
    }

    private static void check(boolean isSo, Object what) {
        if (!isSo) {
            throw new AssertionError(String.valueOf(what));
        }
    }

    private static void refused(String url, String token) {
        Properties wrong = new Properties();
        wrong.put("user", "anybody");
        wrong.put("password", token);
        try (Connection connection = DriverManager.getConnection(url, wrong)) {
            throw new AssertionError("a wrong token was accepted");
        } catch (SQLException error) {
            System.out.println("wrong token: " + firstLine(error));
        }
    }

    private static String firstLine(Exception error) {
        return String.valueOf(error.getMessage()).split("\n")[0];
    }

    /** What a tool shows on the left. Returns the tables, quoted. */
    private static List<String> tree(DatabaseMetaData meta) throws SQLException {
        System.out.println(meta.getDatabaseProductName() + " " + meta.getDatabaseProductVersion());
        check(meta.getIdentifierQuoteString().equals("\""), meta.getIdentifierQuoteString());
        check(meta.getSQLKeywords() != null && meta.getNumericFunctions().contains("ABS"), "words");
        check(!meta.supportsTransactions() && meta.supportsBatchUpdates(), "abilities");
        check(meta.supportsConvert(Types.VARCHAR, Types.INTEGER), "conversions");
        check(meta.getMaxStatementLength() > 0 && meta.getMaxConnections() > 0, "limits");
        check(meta.supportsGroupBy() && meta.supportsUnionAll() && meta.supportsFullOuterJoins(), "SQL");
        meta.isReadOnly();
        check(count(meta.getCatalogs()) >= 1, "catalogs");
        check(count(meta.getSchemas()) >= 2, "schemas");
        check(count(meta.getTableTypes()) == 2, "table types");
        // The driver does not ask for types yet.
        count(meta.getTypeInfo());
        List<String> tables = new ArrayList<>();
        try (ResultSet found = meta.getTables(null, null, "%", new String[] {"TABLE", "VIEW"})) {
            while (found.next()) {
                String catalog = found.getString("TABLE_CAT");
                String schema = found.getString("TABLE_SCHEM");
                String name = found.getString("TABLE_NAME");
                if (!schema.equals(NAMES)) {
                    tables.add("\"" + catalog + "\".\"" + schema + "\".\"" + name + "\"");
                    // Only the range file has one: its column id.
                    int keys = name.equals("target") ? 1 : 0;
                    check(count(meta.getPrimaryKeys(catalog, schema, name)) == keys, "primary keys");
                    check(count(meta.getImportedKeys(catalog, schema, name)) == 0, "imported keys");
                    check(count(meta.getExportedKeys(catalog, schema, name)) == 0, "exported keys");
                }
            }
        }
        check(!tables.isEmpty(), "no tables");
        int columns = 0;
        try (ResultSet found = meta.getColumns(null, null, "%", "%")) {
            while (found.next()) {
                columns++;
                check(found.getString("COLUMN_NAME") != null && found.getInt("ORDINAL_POSITION") > 0, "column");
                found.getString("TYPE_NAME");
                found.getInt("DATA_TYPE");
            }
        }
        System.out.println(tables.size() + " tables, " + columns + " columns");
        return tables;
    }

    private static int count(ResultSet rows) throws SQLException {
        int count = 0;
        try (rows) {
            while (rows.next()) {
                count++;
            }
        }
        return count;
    }

    private static void read(Connection connection, List<String> tables) throws SQLException {
        for (String table : tables) {
            try (Statement statement = connection.createStatement();
                    ResultSet rows = statement.executeQuery("select * from " + table)) {
                ResultSetMetaData meta = rows.getMetaData();
                long count = 0;
                String first = "";
                while (rows.next()) {
                    for (int at = 1; at <= meta.getColumnCount(); at++) {
                        Object value = value(rows, at);
                        if (count == 0 && first.length() < 1000) {
                            first += " " + meta.getColumnName(at) + "=" + value;
                        }
                    }
                    count++;
                }
                System.out.println(table + ": " + count + " rows;" + first);
            } catch (SQLException | RuntimeException error) {
                // A row that is larger than a message, and the like.
                System.out.println(table + ": refused: " + firstLine(error));
            }
        }
    }

    /** The value of a column. The driver reads timestamps with a time zone only as such. */
    private static Object value(ResultSet rows, int at) throws SQLException {
        if (rows.getMetaData().getColumnType(at) == Types.TIMESTAMP_WITH_TIMEZONE) {
            return rows.getTimestamp(at);
        }
        return rows.getObject(at);
    }

    private static void errors(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeQuery("select * from there_is_no_such_table");
            throw new AssertionError("an unknown table was accepted");
        } catch (SQLException error) {
            check(error.getMessage().contains("there_is_no_such_table"), error);
            System.out.println("unknown table: " + firstLine(error));
        }
    }

    private static void parameters(Connection connection) throws SQLException {
        String sql = "select cast($1 as bigint) as n, cast($2 as varchar) as t, cast($3 as timestamp) as at, "
                + "cast($4 as double) as d, cast($5 as boolean) as b, cast($6 as date) as day";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            ParameterMetaData parameters = statement.getParameterMetaData();
            check(parameters.getParameterCount() == 6, parameters.getParameterCount());
            for (int at = 1; at <= 6; at++) {
                System.out.print(parameters.getParameterTypeName(at) + (at < 6 ? ", " : "\n"));
            }
            Timestamp at = Timestamp.valueOf("2026-11-24 12:30:15.123");
            for (long n : new long[] {7, -1}) {
                statement.setLong(1, n);
                statement.setString(2, "text " + n);
                statement.setTimestamp(3, at);
                statement.setDouble(4, 1.5);
                statement.setBoolean(5, true);
                statement.setDate(6, Date.valueOf("2026-02-28"));
                try (ResultSet rows = statement.executeQuery()) {
                    check(rows.next(), "a row");
                    check(rows.getLong(1) == n && rows.getString(2).equals("text " + n), rows.getObject(1));
                    System.out.println("timestamp " + rows.getTimestamp(3) + ", date " + rows.getDate(6));
                    check(rows.getTimestamp(3).getTime() == at.getTime(), rows.getTimestamp(3));
                    check(rows.getDouble(4) == 1.5 && rows.getBoolean(5), rows.getObject(4));
                    check(rows.getDate(6).toString().equals("2026-02-28"), rows.getDate(6));
                    check(!rows.next(), "another row");
                }
            }
            for (int parameter = 1; parameter <= 6; parameter++) {
                statement.setNull(parameter, Types.VARCHAR);
            }
            try (ResultSet rows = statement.executeQuery()) {
                check(rows.next(), "a row of NULL");
                for (int column = 1; column <= 6; column++) {
                    check(rows.getObject(column) == null, rows.getObject(column));
                }
            }
        }
        System.out.println("parameters: values come back as they were");
    }

    private static void write(Connection connection, String target) throws SQLException {
        String first;
        String second;
        long before = 0;
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("select * from " + target)) {
            first = rows.getMetaData().getColumnName(1);
            second = rows.getMetaData().getColumnName(2);
            while (rows.next()) {
                before++;
            }
        }
        String sql = "insert into " + target + " (\"" + first + "\", \"" + second + "\") values ($1, $2)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setLong(1, 2_000_000 + before);
            statement.setString(2, "one");
            check(statement.executeUpdate() == 1, "one row");
            for (long n = 1; n <= 10; n++) {
                statement.setLong(1, 2_000_000 + before + n);
                statement.setString(2, "batch " + n);
                statement.addBatch();
            }
            statement.executeBatch();
        }
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("select * from " + target)) {
            long after = 0;
            while (rows.next()) {
                after++;
            }
            check(after == before + 11, after - before);
        }
        System.out.println("writes: 11 rows");
    }
}
